"""Every host but the leader: runs its servers until the leader says how the job ended, or is gone."""

from __future__ import annotations

import time

from headrace.errors import HeadraceError
from headrace.host.run import HostRun, failure_of
from headrace.outcome import Outcome, RootCause

UNHEARD_FAILURE_S = 60.0
"""How long a host that has failed waits for a leader that was never heard, to tell it why."""


def follow(run: HostRun) -> Outcome:
    """The outcome that the leader decided; a failure of its own when the leader is gone."""
    settings, leader = run.plan.settings, run.plan.topology.leader.name
    try:
        run.start_servers()
    except HeadraceError as error:
        run.state.fail(failure_of(error, run.state.host))
    while run.state.outcome is None:
        try:
            run.check_children()
            run.start_mpi_daemons()
        except HeadraceError as error:
            run.state.fail(failure_of(error, run.state.host))
        now = time.monotonic()
        silence_s = run.state.silence_s(now)
        failure = run.state.failure
        if silence_s is None:
            patience_s = min(settings.startup_timeout_s, UNHEARD_FAILURE_S) if failure else settings.startup_timeout_s
            if now - run.started > patience_s:
                never = f"was never heard within startup_timeout_s={settings.startup_timeout_s:g}"
                return Outcome(failure or RootCause(leader, "launcher", never))
        elif silence_s > settings.lease_s:
            gone = f"has not been heard for {settings.lease_s:g} s (lease_s)"
            return Outcome(failure or RootCause(leader, "launcher", gone))
        run.wait()
    return run.state.outcome
