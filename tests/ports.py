"""Free ports, below the range that the kernel uses for outgoing connections, so that no connection takes one."""

import itertools
import os
import random
import socket

FIRST, OF_EACH = 20_000, 1_500
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
"""Number of the pytest-xdist worker. Each one, up to four, has its own range of ports."""
_IN_TURN = itertools.cycle(random.sample(range(OF_EACH), OF_EACH))
"""Offsets of ports in random order. Each is given out once, so that the five ports of one service differ."""


def free_port():
    while True:
        port = FIRST + WORKER * OF_EACH + next(_IN_TURN)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
