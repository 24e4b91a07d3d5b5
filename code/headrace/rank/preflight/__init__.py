"""The preflight: before training, the ranks test MPI, on the links between them and with every kind of collective.

`headrace preflight` runs it, and so does a job with `--preflight`. Each test checks the values that arrive and measures
the time. Every wait has a deadline, and an error names the rank or link that was silent.
"""
