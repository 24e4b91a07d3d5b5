"""Test of MPI by the ranks that will train, before they train: the hosts, every link, every kind of collective.

`headrace preflight` runs it, and so does `--preflight` on a job. The values of each answer are checked, and its time is
measured. Every wait has a deadline, at which a silent rank or link is named.
"""
