"""The ports of a job's hosts. Users open them between groups, so they stay as they are."""

from __future__ import annotations

import contextlib
import random
import socket

from headrace.errors import SetupError

DISPATCHER_PORT = 6000
FIRST_WORKER_PORT = 6001
"""Further workers of a host listen on the ports that follow."""
TRANSFER_PORT_OFFSET = 1000
"""A worker on 6001 also sends batches from 7001, by headrace's own protocol (`tensorflow/service/transfer`)."""
CONTROL_PORT = 16000
_PASSING = range(20_000, 32_000)
"""For what lives for a moment. Linux gives 32768 and those above to connections."""


def is_own_port(port: int, workers: int) -> bool:
    """Whether a server of the job may listen there, with so many workers on a host."""
    worker_ports = range(FIRST_WORKER_PORT, FIRST_WORKER_PORT + max(workers, 1))
    return (
        port in (DISPATCHER_PORT, CONTROL_PORT) or port in worker_ports or port - TRANSFER_PORT_OFFSET in worker_ports
    )


def free_ports(count: int) -> list[int]:
    """Some that nobody has. No connection is given one of them before its server takes it.

    Raises:
        SetupError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(_PASSING, len(_PASSING)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            found.append(port)
        if len(found) == count:
            return found
    raise SetupError(f"fewer than {count} ports from {_PASSING[0]} to {_PASSING[-1]} are free")
