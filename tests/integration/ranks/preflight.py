"""A rank in a preflight.

The arguments `RANK STAGE stops` make that rank stop itself in that stage. `RANK STAGE lies` makes it send wrong bytes.
"""

import os
import signal
import sys

from headrace.rank.preflight import checks, meeting
from headrace.rank.preflight.run import run_preflight
from mpi4py import MPI

meeting.ANSWER_S = 10.0  # waiting ranks busy-wait, so on a busy machine a rank may answer late
culprit, where, how = [*sys.argv[1:], "", "", ""][:3]
stage, pattern = meeting.Meeting.stage, checks._pattern


def troubled(self, what, members, work):
    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)
        return work()

    return stage(self, what, members, stop if what.startswith(where) else work)


def lie(size):
    return pattern(size) + 1


if culprit == str(MPI.COMM_WORLD.rank):
    if how == "lies":
        checks._pattern = lie
    else:
        meeting.Meeting.stage = troubled
run_preflight(os.environ)
