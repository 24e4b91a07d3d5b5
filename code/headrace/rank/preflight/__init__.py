"""The preflight: the ranks test MPI before training. They test the links between them, and every kind of collective.

`headrace preflight` runs it, and so does a job with `--preflight`. Each test checks the values that arrive and measures
the time. Every wait has a deadline, and an error names the rank or link that was silent.
"""
