"""Free ports, below the range that the kernel uses for outgoing connections, so that no connection takes one."""

import fcntl
import itertools
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, OF_EACH, RANGES = 20_000, 750, 8


def _own_range():
    """Return the number of a range of ports, and the locked file that keeps other processes' tests from using it.

    If all ranges are taken, return any one, and no file.
    """
    for number in range(RANGES):
        lock = (Path(tempfile.gettempdir()) / f"headrace-tests-{os.getuid()}-ports-{number}").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
        else:
            return number, lock
    return random.randrange(RANGES), None


_RANGE, _LOCK = _own_range()
_IN_TURN = itertools.cycle(random.sample(range(OF_EACH), OF_EACH))
"""Offsets of ports in random order. Each is given out once, so that the five ports of one service differ."""


def free_port():
    while True:
        port = FIRST + _RANGE * OF_EACH + next(_IN_TURN)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
