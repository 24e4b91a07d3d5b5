"""A port that nobody listens on, below those that the kernel gives to connections: none of them takes it meanwhile."""

import random
import socket


def free_port():
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port
