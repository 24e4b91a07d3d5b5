"""The leader: waits for the hosts, runs the trainer, decides the job's one outcome and spreads it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NoReturn

from headrace.errors import HeadraceError
from headrace.events import Event
from headrace.host import mpi, summary
from headrace.host.causes import failure_of, stopped, unexpected
from headrace.host.lease import STEPPING_INTERVAL_S, Lease
from headrace.host.memory import explained
from headrace.host.ranks import dump_ranks
from headrace.host.ready import Readiness
from headrace.host.run import HostRun
from headrace.host.state import STARTING, STEPPING
from headrace.host.stop import StopRequest
from headrace.host.times import JobTimes
from headrace.host.toolkit import ended_by_mpirun
from headrace.host.watchdog import PreflightWatch, StallWatchdog, diagnose, diagnose_start
from headrace.outcome import Outcome, RootCause
from headrace.settings import CONTROL_PORT

DUMP_TIMEOUT_S = 3.0
ORTED_PATIENCE_S = 3.0
"""An MPI daemon ends with its ranks; which rank failed is known to mpirun, a little later."""


class Leader:
    """One job, led from the first dnn host."""

    def __init__(self, run: HostRun) -> None:
        self._run = run
        self._phase = STARTING
        self._times = JobTimes(run.started)
        self._lost: list[str] = []
        self._orted_failed_at: float | None = None
        settings = run.plan.settings
        self._preflight = PreflightWatch(settings)
        self._stop = StopRequest(run.plan.signal_dir, settings.stop_grace_s, run.log)
        self._leases = [
            Lease(host.name, f"{settings.endpoint(host.name).address}:{CONTROL_PORT}", settings.secret,
                  settings.lease_s, lambda: {"phase": self._phase, "protocol": run.state.protocol}, run.wake)
            for host in run.plan.topology.peers()
        ]  # fmt: skip
        self._ready = Readiness(run, self._leases, self._lost, self._check_hosts, self._lose)

    def lead(self) -> Outcome:
        """The outcome of the job, delivered to every host that can be reached."""
        outcome = Outcome()
        try:
            self._run.start_servers()
            self._ready.await_trainer_hosts()
            self._train()
        except HeadraceError as error:
            self._run.state.fail(failure_of(error, self._run.state.host))
        except _Failed as failed:
            outcome = Outcome(failed.cause)
        except Exception as error:  # whatever it is, every host must hear of it
            outcome = Outcome(unexpected(error, self._run.state.host, self._run.log))
        if self._run.state.failure and not outcome.root_cause:
            outcome = Outcome(self._run.state.failure)
        if outcome.root_cause:
            outcome = Outcome(self._with_kernels_reason(outcome.root_cause))
        self._finish(outcome)
        return outcome

    # Training

    def _train(self) -> None:
        """Run the trainer to its end. Raises `_Failed` with the root cause when anything ends the job."""
        run, plan = self._run, self._run.plan
        ranks = run.ranks
        self._times.training_at = time.monotonic()
        run.log.event("training_started", hosts=len(plan.topology.dnn_hosts), ranks_per_host=plan.ranks_per_host)
        self._preflight.begin(self._times.training_at)
        trainer = run.start_trainer(self._take_event)
        # The trainer imports and compiles meanwhile.
        self._ready.await_data(trainer_ended=lambda: trainer.ended)
        self._times.workers_ready_at = time.monotonic()
        settings, now = plan.settings, time.monotonic()
        watchdog = StallWatchdog(plan.signal_dir, settings.stall_timeout_s, settings.startup_timeout_s, now)
        while True:
            self._check_hosts()
            if trainer.ended:
                break
            waiting = bool(ranks.missing_in_allreduce())
            silence_s = watchdog.stalled_s(time.monotonic(), ranks.lines, waiting)
            if watchdog.stepped:
                ranks.progressed()
            if silence_s is not None:
                silence = f"{silence_s:.0f} s ({watchdog.limit_name})"
                uses_service = plan.tf_data_mode == "service"
                self._fail_stalled(diagnose(run.state.host, silence, ranks, self._statuses(), uses_service))
            run.wait()
        self._times.end()

    def _take_event(self, event: Event) -> None:
        """A log event of a rank; called from the reader's thread."""
        if event.name == "first_step" and self._times.first_step_at is None:
            self._times.first_step_at = time.monotonic()
            self._phase = STEPPING
            self._run.state.set_phase(STEPPING)
        elif event.name == "ideal_step" and self._times.stepping_at is None:
            self._times.stepping_at = time.monotonic()
        self._stop.take_event(event)
        self._preflight.take_event(event, time.monotonic())

    def _fail_stalled(self, cause: RootCause) -> NoReturn:
        """Print every rank's stacks and fail with what can be seen of the stall."""
        run = self._run
        run.log.say(cause.one_line())
        for lease in self._leases:
            lease.request_dump()
        dump_ranks(run.log)
        deadline = time.monotonic() + DUMP_TIMEOUT_S
        while time.monotonic() < deadline:
            run.check_children()  # the stacks arrive meanwhile
            run.wait()
        raise _Failed(cause)

    def _check_hosts(self) -> None:
        """Raises `_Failed` when this host or another one has failed or, not to be missed, is lost."""
        self._run.check_children()
        failure = self._run.state.failure
        if failure:
            raise _Failed(failure)
        now = time.monotonic()
        for lease in self._heard():
            status = lease.status or {}
            if status.get("failure"):
                self._check_failure(RootCause.from_json(status["failure"]), now)
            if lease.lost(now):
                self._lose(lease)
        self._check_stop()
        if self._preflight.has_not_started(now):
            timeout_s = self._run.plan.settings.preflight_timeout_s
            self._fail_stalled(diagnose_start(self._run.state.host, timeout_s, self._statuses()))
        if self._preflight.has_not_ended(now):
            raise _Failed(self._run.ranks.root_cause(RootCause(self._run.state.host, "trainer", "preflight failed")))

    def _check_failure(self, cause: RootCause, now: float) -> None:
        """Raises `_Failed` for another host's failure; mpirun may first say what ended an MPI daemon."""
        if cause.role == mpi.ORTED:
            self._orted_failed_at = self._orted_failed_at or now
            if now - self._orted_failed_at < ORTED_PATIENCE_S:
                return
        raise _Failed(cause)

    def _lose(self, lease: Lease) -> None:
        """Go on without a host where the job can. Raises `_Failed` where it cannot."""
        plan = self._run.plan
        self._lost.append(lease.host)
        self._run.log.event("host_lost", host=lease.host, error=lease.error)
        topology, settings = plan.topology, plan.settings
        left = [host.name for host in topology.data_hosts if host.name not in self._lost]
        lost = next(host for host in topology.hosts if host.name == lease.host)
        waited_s = settings.lease_s if lease.status else settings.startup_timeout_s
        silence = f"the host has not answered for {waited_s:g} s ({lease.error})"
        if lost.role == "dnn" or lost == topology.dispatcher_host:
            raise _Failed(RootCause(lease.host, "host", silence))
        if len(left) < settings.min_data_hosts:
            few = f"{silence}; {len(left)} data hosts are left, min_data_hosts is {settings.min_data_hosts}"
            raise _Failed(RootCause(lease.host, "host", few))
        self._run.log.say(f"{lease.host} is lost ({silence}); going on with {', '.join(left)}")

    def _check_stop(self) -> None:
        """Raises `_Failed` once a stop request, to whichever host it came, has been answered."""
        own = self._run.state
        if self._run.plan.rank and own.stop_signal:
            raise _Failed(self._run.ranks.root_cause(ended_by_mpirun(own.host, own.stop_signal)))
        requests = {own.host: own.stop_signal}
        requests |= {lease.host: str((lease.status or {}).get("stop_signal", "")) for lease in self._heard()}
        asked = self._stop.due(requests, self._phase == STEPPING, time.monotonic())
        if asked:
            raise _Failed(stopped(*asked))

    # After training

    def _finish(self, outcome: Outcome) -> None:
        """Spread the outcome while this host's children end, then write the summary."""
        run = self._run
        self._times.end()
        train_s = self._times.train_s()
        if train_s is not None:
            run.log.event("training_finished", status=outcome.status, train_s=train_s)
        run.state.usage.freeze()
        for lease in self._leases:
            lease.deliver(outcome)
        run.supervisor.teardown()
        # A host is lost that is not reached for a lease's length, here as before; on a bad link a call or two may fail.
        deadline = time.monotonic() + run.plan.settings.lease_s
        for lease in self._leases:
            if lease.host not in self._lost and not lease.delivered.wait(max(deadline - time.monotonic(), 0)):
                # It died too shortly before the end for its lease to run out.
                self._lost.append(lease.host)
                run.log.event("host_lost", host=lease.host, error=f"not told the outcome: {lease.error or 'no answer'}")
            lease.close()
        output_dir = run.plan.output_dir
        record = summary.build_summary(
            run.plan.topology,
            run.plan.settings.job_name,
            run.plan.tf_data_mode,
            outcome,
            summary.take_trainer_report(output_dir),
            self._statuses(),
            self._lost,
            self._times.as_json(),
        )
        try:
            summary.write_json(output_dir / summary.SUMMARY, record)
        except OSError as error:
            run.log.say(f"cannot write {output_dir / summary.SUMMARY}: {error}")

    def _with_kernels_reason(self, cause: RootCause) -> RootCause:
        """With the kernel's reason for a kill; of another host's rank mpirun may know before that host has said why."""
        deadline = time.monotonic() + STEPPING_INTERVAL_S + 1
        of_rank = cause.signal == "SIGKILL" and cause.role.startswith("rank")
        lease = next((each for each in self._leases if of_rank and each.host == cause.host), None)
        known = lease.status if lease else None
        while lease and lease.status is known and time.monotonic() < deadline:
            self._run.wait()
        return explained(cause, self._statuses().get(cause.host, {}).get("memory") or {})

    def _heard(self) -> list[Lease]:
        """Of the hosts that the job does not do without."""
        return [lease for lease in self._leases if lease.host not in self._lost]

    def _statuses(self) -> Mapping[str, Mapping[str, Any]]:
        statuses = {lease.host: lease.status for lease in self._leases if lease.status}
        return {self._run.state.host: self._run.state.status(), **statuses}


class _Failed(Exception):
    """Ends the leader's loops: the job has failed."""

    def __init__(self, cause: RootCause) -> None:
        super().__init__(cause.one_line())
        self.cause = cause
