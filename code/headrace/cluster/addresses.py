"""Ports and addresses of a job's hosts. The ports must not change, because users open them in security groups."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from headrace.errors import InputError, SetupError

DISPATCHER_PORT = 6000
FIRST_WORKER_PORT = 6001
"""The port of a host's first worker; its other workers listen on the ports that follow."""
TRANSFER_PORT_OFFSET = 1000
"""Difference between a worker's port (6001) and its port for headrace's own transfer protocol (7001)."""
CONTROL_PORT = 16000
_PASSING = range(26_000, 32_000)
"""Ports for servers without a fixed port, below Linux's range of ephemeral ports (32768 and up)."""
ENDPOINTS_VARIABLE = "HEADRACE_ENDPOINTS"
"""Environment variable with the hosts' addresses and ports, in the format of `encode_endpoints`. The variable is set on
Slurm and for hosts on loopback addresses. Otherwise, hosts are reached by their names, at the default ports."""


@dataclass(frozen=True)
class Endpoint:
    """The address at which other hosts reach a host, and the address and port at which its servers listen."""

    address: str
    bind_address: str = "0.0.0.0"
    first_worker_port: int = FIRST_WORKER_PORT
    dispatcher_port: int = DISPATCHER_PORT
    control_port: int = CONTROL_PORT

    @property
    def control_address(self) -> str:
        """The `ADDRESS:PORT` of the host's control channel."""
        return f"{self.address}:{self.control_port}"


def encode_endpoints(endpoints: Mapping[str, Endpoint]) -> str:
    """Return the value of `HEADRACE_ENDPOINTS` for a dict from host name to endpoint."""
    return json.dumps({host: astuple(endpoint) for host, endpoint in endpoints.items()})


def read_endpoints(text: str) -> dict[str, Endpoint]:
    """Return the endpoints that `encode_endpoints` wrote. Raises `InputError` for a malformed text."""
    if not text:
        return {}
    try:
        return {
            str(host): Endpoint(str(address), str(bind), *map(int, ports))
            for host, (address, bind, *ports) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{ENDPOINTS_VARIABLE} is malformed ({error}): {text!r}") from error


def free_ports(count: int) -> list[int]:
    """Return `count` free ports, none of them from Linux's range of ephemeral ports (32768 and up).

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
    raise SetupError(f"fewer than {count} ports in {_PASSING[0]}-{_PASSING[-1]} are free; end programs that use ports")
