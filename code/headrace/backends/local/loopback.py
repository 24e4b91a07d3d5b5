"""Simulate hosts as loopback addresses (127.0.0.1, 127.0.0.2, …), for machines that forbid namespaces.

Host names do not resolve, so an environment variable holds the hosts' addresses. TensorFlow's servers listen on all
addresses, so each host's workers get ports of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.cluster.addresses import ENDPOINTS_VARIABLE, FIRST_WORKER_PORT, Endpoint, encode_endpoints


class Loopback:
    """The simulated hosts of one job, on loopback addresses. Used in place of `Namespaces`."""

    description = "on loopback addresses"

    def __init__(self, work_dir: Path, host_names: Sequence[str], workers_per_host: int) -> None:
        self._work_dir = work_dir
        self._endpoints = {
            name: Endpoint(f"127.0.0.{index + 1}", f"127.0.0.{index + 1}", FIRST_WORKER_PORT + index * workers_per_host)
            for index, name in enumerate(host_names)
        }

    def base_dir(self, host: str) -> Path:
        """Return the folder that the host uses in place of /opt/ml."""
        return self._work_dir / host

    def environ(self) -> dict[str, str]:
        """Return the environment variable that holds the hosts' addresses."""
        return {ENDPOINTS_VARIABLE: encode_endpoints(self._endpoints)}

    def command(self, host: str, folder: Path, argv: Sequence[str]) -> list[str]:
        """Return `argv` unchanged."""
        return list(argv)
