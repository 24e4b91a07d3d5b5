"""Run a host that is not the leader, until the leader sends the job's outcome or falls silent."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.host.failures import cause_of, stopped
from headrace.host.host_run import HostRun
from headrace.host.mpi.mpirun import ORTED
from headrace.outcome import Outcome, RootCause

STOP_MARGIN_S = 5.0
"""After a stop request, a host waits at most `stop_grace_s` plus this many seconds for the leader to end the job."""
UNHEARD_FAILURE_S = 60.0
"""Seconds that a failed host waits for the leader's first call, so that it can report the failure."""


def follow(run: HostRun) -> Outcome:
    """Run this host; return the outcome that the leader sent, or a failure if the leader is silent."""
    settings, leader = run.plan.settings, run.plan.topology.leader.name

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # the leader must hear of it, whatever failed
            run.state.fail(cause_of(error, run.state.host, run.log))

    attempt(run.start_servers)
    if run.plan.rank and not run.state.failure:
        attempt(run.start_trainer)
    stop_asked_at: float | None = None
    while run.state.outcome is None:
        attempt(run.check_children)
        attempt(run.wait)
        now = time.monotonic()
        if run.state.stop_signal and stop_asked_at is None:
            stop_asked_at = now
        if stop_asked_at is not None and now - stop_asked_at > settings.stop_grace_s + STOP_MARGIN_S:
            run.state.fail(stopped(run.state.host, run.state.stop_signal))
            return Outcome(run.state.failure)
        silence_s = run.state.silence_s(now)
        failure = run.state.failure
        if silence_s is None:
            if run.state.stop_signal:
                return Outcome(failure or stopped(run.state.host, run.state.stop_signal))
            patience_s = min(settings.startup_timeout_s, UNHEARD_FAILURE_S) if failure else settings.startup_timeout_s
            if now - run.started > patience_s:
                never = f"did not contact this host within startup_timeout_s={settings.startup_timeout_s:g}"
                return Outcome(failure or RootCause(leader, "launcher", never))
        elif silence_s > settings.lease_s:
            gone = RootCause(leader, "launcher", f"has not contacted this host for {settings.lease_s:g} s (lease_s)")
            # An MPI daemon ends when the leader's mpirun is gone. So the daemon's end is not the root cause.
            return Outcome(failure if failure and failure.process != ORTED else gone)
    return run.state.outcome
