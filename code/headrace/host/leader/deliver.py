"""End a job: find the kernel's reason for a kill, and tell every host the outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headrace.host.failures import leave
from headrace.host.host_run import PUBLISH_INTERVAL_S, HostRun
from headrace.host.leader.lease import Lease
from headrace.host.leader.peers import Hosts
from headrace.host.leader.summary import JobTimes, write_summary
from headrace.host.usage.oom import explained
from headrace.outcome import Outcome, RootCause

NEWS_TIMEOUT_S = 2.3
"""Seconds to wait for a host's next report."""


def with_kernels_reason(run: HostRun, hosts: Hosts, leases: Sequence[Lease], cause: RootCause) -> RootCause:
    """Return the root cause of a kill, with the kernel's reason (out of memory) if there is one.

    mpirun may report the kill before the rank's host reports the reason. So this waits for that host's next report.
    """
    if cause.signal == "SIGKILL" and cause.process.startswith("rank") and cause.host in hosts.present():
        # A report may be PUBLISH_INTERVAL_S old, and it must have been made after the kill.
        run.wait_until(lambda: False, PUBLISH_INTERVAL_S + 0.2)
        asked_at = time.monotonic()
        next(lease for lease in leases if lease.host == cause.host).hurry()
        run.wait_until(lambda: hosts.heard_at[cause.host] >= asked_at, NEWS_TIMEOUT_S)
    statuses = {run.state.host: run.state.status(), **hosts.statuses}
    return explained(cause, statuses.get(cause.host, {}).get("memory") or {})


def settle(run: HostRun, hosts: Hosts, leases: Sequence[Lease], times: JobTimes, cause: RootCause) -> RootCause:
    """Return the root cause with the kernel's reason.

    If the toolkit's mpirun started this launcher, it kills the launcher a second after one of its ranks has failed.
    Then the root cause is written to its files before the reason is known, and again after.
    """

    def write_down(cause: RootCause) -> RootCause:
        if run.plan.rank:
            leave(run.plan.paths, cause)
            write_summary(run, hosts, times, Outcome(cause), another_follows=True)
        return cause

    return write_down(with_kernels_reason(run, hosts, leases, write_down(cause)))


def deliver(run: HostRun, hosts: Hosts, leases: Sequence[Lease], outcome: Outcome) -> None:
    """Tell every host the outcome while this host ends its children; a host that is silent for a lease is lost."""
    run.state.usage.freeze()
    for lease in leases:
        lease.deliver(outcome)
    run.supervisor.teardown()
    # As before the end, a host is lost only after a whole lease: on a bad link a call or two may fail.
    run.wait_until(lambda: set(hosts.names) <= {*hosts.informed, *hosts.lost}, run.plan.settings.lease_s)
    for lease in leases:
        if lease.host not in hosts.informed and lease.host not in hosts.lost:
            # It died so shortly before the end that its lease has not run out.
            hosts.lost.append(lease.host)
            error = f"has not received the outcome: {hosts.errors[lease.host] or 'no answer'}"
            run.log.event("host_lost", host=lease.host, error=error)
        lease.close()
