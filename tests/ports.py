"""Find free ports. They lie below the kernel's range for outgoing connections, so no connection takes one of them."""

import fcntl
import itertools
import os
import random
import socket
import tempfile
from pathlib import Path

FIRST, OF_EACH, RANGES = 20_000, 750, 8


def _own_range():
    """Return a port range's index, and the locked file that keeps other processes' tests from using this range.

    If all ranges are taken, return any index, and no file.
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
