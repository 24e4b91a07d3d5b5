"""What the leader waits for before and beside the trainer's start, and which missing hosts it does without."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from headrace.context import GRPC
from headrace.errors import DeadlineError
from headrace.host.lease import Lease
from headrace.host.run import HostRun

PROGRESS_INTERVAL_S = 5.0
LATE_WORKERS_S = 60.0
"""How long ranks wait for a host that is late, once there are enough others: it may be building the transfer."""


class Readiness:
    """The job's hosts, what is being installed on them, and their workers, against `startup_timeout_s`.

    Args:
        lost: hosts that the job goes on without; grows while this waits.
        check: called at each tick; raises when the job has failed.
        lose: does without a host, or raises.
    """

    def __init__(
        self,
        run: HostRun,
        leases: Sequence[Lease],
        lost: Collection[str],
        check: Callable[[], None],
        lose: Callable[[Lease], None],
    ) -> None:
        self._run = run
        self._leases = leases
        self._lost = lost
        self._check = check
        self._lose = lose
        self._enough_since: float | None = None

    def await_trainer_hosts(self) -> None:
        """Until all dnn hosts answer and have what the trainer needs. Raises `DeadlineError`."""
        dnn_hosts = {host.name for host in self._run.plan.topology.dnn_hosts}
        self._await(lambda: self._missing_hosts(dnn_hosts) + self._missing_installs(), lambda: False)

    def await_data(self, trainer_ended: Callable[[], bool]) -> None:
        """Until all hosts answer and every worker is registered, or there is no more use. Raises `DeadlineError`."""
        hosts = {host.name for host in self._run.plan.topology.hosts}
        self._await(self._missing_offers, trainer_ended)
        self._agree_on_protocol()
        self._await(lambda: self._missing_hosts(hosts) + self._missing_workers(), trainer_ended)
        if self._run.service.expected_workers() and not trainer_ended():
            after_s = time.monotonic() - self._run.started
            self._run.log.event("workers_ready", n=self._registered_workers(), after_s=after_s)

    def _await(self, missing: Callable[[], list[str]], pointless: Callable[[], bool]) -> None:
        run, timeout_s = self._run, self._run.plan.settings.startup_timeout_s
        next_progress = run.started + PROGRESS_INTERVAL_S
        while True:
            self._check()
            waiting_for = missing()
            if not waiting_for or pointless():
                return
            now = time.monotonic()
            if now - run.started > timeout_s and not self._do_without():
                hints = "".join(f"; {lease.host}: {lease.error}" for lease in self._leases if lease.error)
                raise DeadlineError(
                    f"The job was not ready within startup_timeout_s={timeout_s:g}: still waiting for "
                    + " and ".join(waiting_for) + hints
                )  # fmt: skip
            if now >= next_progress:
                run.log.say(f"waiting for {' and '.join(waiting_for)} ({now - run.started:.0f} s)")
                next_progress = now + PROGRESS_INTERVAL_S
            run.wait()

    def _silent(self) -> list[Lease]:
        return [lease for lease in self._leases if lease.status is None and lease.host not in self._lost]

    def _missing_hosts(self, among: Collection[str]) -> list[str]:
        silent = [lease.host for lease in self._silent() if lease.host in among]
        return [f"first contact with {', '.join(silent)}"] if silent else []

    def _missing_installs(self) -> list[str]:
        statuses = {lease.host: lease.status or {} for lease in self._leases}
        statuses[self._run.state.host] = self._run.state.status()
        installing = [host for host, status in statuses.items() if status.get("installing")]
        return [f"Horovod to be installed on {', '.join(installing)}"] if installing else []

    def _offers(self) -> dict[str, str]:
        """By which protocol each worker that has said so can send batches."""
        heard = [lease for lease in self._leases if lease.host not in self._lost]
        offers = {lease.host: (lease.status or {}).get("offers") or {} for lease in heard}
        offers[self._run.state.host] = self._run.state.offers
        return {f"{host}/{worker}": protocol for host, of in offers.items() for worker, protocol in of.items()}

    def _missing_offers(self) -> list[str]:
        """What is missing for a decision: all workers, for a while; then those without which nothing can be read."""
        topology, offers = self._run.plan.topology, self._offers()
        missing = self._run.service.expected_workers(without=self._lost) - len(offers)
        if missing <= 0:
            return []
        heard = {worker.partition("/")[0] for worker in offers}
        needed = {host.name for host in topology.dnn_hosts} | {topology.dispatcher_host.name}
        data_hosts = sum(host.name in heard for host in topology.data_hosts)
        if needed <= heard and data_hosts >= min(self._run.plan.settings.min_data_hosts, len(topology.data_hosts)):
            self._enough_since = self._enough_since or time.monotonic()
            if time.monotonic() - self._enough_since > LATE_WORKERS_S:
                return []
        hosts = {host.name for host in topology.hosts}
        return [*self._missing_hosts(hosts), f"{missing} tf.data workers to start"]

    def _agree_on_protocol(self) -> None:
        """Decide how batches travel: by what all workers have, since a rank reads from all in one way."""
        offers = self._offers()
        if not offers:
            return
        without = sorted(worker for worker, protocol in offers.items() if protocol == GRPC)
        protocol = GRPC if without else next(iter(offers.values()))
        if without and len(without) < len(offers):
            self._run.log.say(f"batches travel over gRPC, at half the rate: {', '.join(without)} can do nothing else")
        self._run.log.event("data_transfer", protocol=protocol)
        self._run.state.agree(protocol)
        for lease in self._leases:
            lease.hurry()

    def _missing_workers(self) -> list[str]:
        expected = self._run.service.expected_workers(without=self._lost)
        registered = self._registered_workers()
        where = self._run.plan.topology.dispatcher_host.name
        return [f"tf.data workers: {registered} of {expected} registered at {where}"] if registered < expected else []

    def _registered_workers(self) -> int:
        """What the dispatcher's host said last; this host when it is that itself."""
        dispatcher_host = self._run.plan.topology.dispatcher_host.name
        if dispatcher_host == self._run.state.host:
            return self._run.state.registered_workers
        status: Mapping[str, Any] | None = next((e.status for e in self._leases if e.host == dispatcher_host), None)
        return int((status or {}).get("registered_workers", 0))

    def _do_without(self) -> bool:
        """Go on without data hosts that never came, where enough others did; whether that was possible."""
        topology, settings = self._run.plan.topology, self._run.plan.settings
        silent = self._silent()
        expendable = {host.name for host in topology.data_hosts} - {topology.dispatcher_host.name}
        left = len(topology.data_hosts) - len(silent) - len(self._lost)
        if not silent or not {lease.host for lease in silent} <= expendable or left < settings.min_data_hosts:
            return False
        for lease in silent:
            self._lose(lease)
        return True
