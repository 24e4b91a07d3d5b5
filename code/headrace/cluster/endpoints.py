"""How hosts are reached where they have no names and ports of their own, as simulated ones on loopback addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cluster.ports import FIRST_WORKER_PORT
from headrace.errors import InputError

ENDPOINTS_VARIABLE = "HEADRACE_ENDPOINTS"
"""How hosts are reached where they have no names of their own (`encode_endpoints`)."""


@dataclass(frozen=True)
class Endpoint:
    """How one host is reached and where it listens."""

    address: str
    bind_address: str = "0.0.0.0"
    first_worker_port: int = FIRST_WORKER_PORT


def encode_endpoints(endpoints: Mapping[str, Endpoint]) -> str:
    """The value of `HEADRACE_ENDPOINTS` for hosts that cannot have names and ports of their own."""
    return json.dumps({host: [e.address, e.bind_address, e.first_worker_port] for host, e in endpoints.items()})


def read_endpoints(text: str) -> dict[str, Endpoint]:
    """What `encode_endpoints` made. Raises `InputError` for anything else."""
    if not text:
        return {}
    try:
        return {
            str(host): Endpoint(str(address), str(bind), int(port))
            for host, (address, bind, port) in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{ENDPOINTS_VARIABLE} is malformed ({error}): {text!r}") from error
