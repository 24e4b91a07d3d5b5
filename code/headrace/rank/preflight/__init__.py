"""MPI tried on the very ranks that will train, before they do: who is where, every link, every kind of collective.

`headrace preflight`, or `--preflight` on a job. Each answer is checked for its values and timed. Nothing here waits
for ever: a rank or a link that gives no sign is named at a deadline.
"""
