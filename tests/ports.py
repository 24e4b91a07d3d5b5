"""A port that nobody listens on, below those that the kernel gives to connections: none of them takes it meanwhile."""

import os
import random
import socket

FIRST, OF_EACH = 20_000, 1_500
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
"""Tests that run at the same time have ports of their own."""


def free_port():
    while True:
        port = FIRST + WORKER * OF_EACH + random.randrange(OF_EACH)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
