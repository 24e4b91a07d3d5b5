"""The ports of a job's hosts. Users open them between groups, so they stay as they are."""

from __future__ import annotations

DISPATCHER_PORT = 6000
FIRST_WORKER_PORT = 6001
"""Further workers of a host listen on the ports that follow."""
TRANSFER_PORT_OFFSET = 1000
"""A worker on 6001 also sends batches from 7001, by headrace's own protocol (`headrace.tensorflow.transfer`)."""
CONTROL_PORT = 16000


def is_own_port(port: int, workers: int) -> bool:
    """Whether a server of the job may listen there, with so many workers on a host."""
    worker_ports = range(FIRST_WORKER_PORT, FIRST_WORKER_PORT + max(workers, 1))
    return (
        port in (DISPATCHER_PORT, CONTROL_PORT) or port in worker_ports or port - TRANSFER_PORT_OFFSET in worker_ports
    )
