"""The ports of a job's hosts. Users open them in security groups, so they must not change."""

from __future__ import annotations

import contextlib
import random
import socket

from headrace.errors import SetupError

DISPATCHER_PORT = 6000
FIRST_WORKER_PORT = 6001
"""The port of a host's first worker; its other workers listen on the ports that follow."""
TRANSFER_PORT_OFFSET = 1000
"""Distance from a worker's port to its port for headrace's own protocol (`tensorflow/service/transfer`): 6001, 7001."""
CONTROL_PORT = 16000
_PASSING = range(20_000, 32_000)
"""Ports for short-lived servers, below 32768, where Linux's range for connections begins."""


def is_own_port(port: int, workers: int) -> bool:
    """Return whether one of the job's servers may use the port, if a host has this number of workers."""
    worker_ports = range(FIRST_WORKER_PORT, FIRST_WORKER_PORT + max(workers, 1))
    return (
        port in (DISPATCHER_PORT, CONTROL_PORT) or port in worker_ports or port - TRANSFER_PORT_OFFSET in worker_ports
    )


def free_ports(count: int) -> list[int]:
    """Return free ports, outside the range from which Linux gives ports to connections.

    Raises:
        SetupError: fewer than `count` ports are free.
    """
    found: list[int] = []
    for port in random.sample(_PASSING, len(_PASSING)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise SetupError(f"fewer than {count} ports from {_PASSING[0]} to {_PASSING[-1]} are free")
