"""The addresses of hosts that have no names and ports of their own: simulated hosts on loopback addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from headrace.cluster.ports import CONTROL_PORT, DISPATCHER_PORT, FIRST_WORKER_PORT
from headrace.errors import InputError

ENDPOINTS_VARIABLE = "HEADRACE_ENDPOINTS"
"""The environment variable with such hosts' addresses and ports, written by `encode_endpoints`."""


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
        """The address at which other hosts reach the host's control channel."""
        return f"{self.address}:{self.control_port}"


def encode_endpoints(endpoints: Mapping[str, Endpoint]) -> str:
    """Return the value of `HEADRACE_ENDPOINTS` for these endpoints, given by host name."""
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
