"""A port that nobody listens on, below those that the kernel gives to connections: none of them takes it meanwhile."""

import itertools
import os
import random
import socket

FIRST, OF_EACH = 20_000, 1_500
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
"""Tests that run at the same time have ports of their own."""
_IN_TURN = itertools.cycle(random.sample(range(OF_EACH), OF_EACH))
"""Given out once each: of five for one service, two would now and then be the same."""


def free_port():
    while True:
        port = FIRST + WORKER * OF_EACH + next(_IN_TURN)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
