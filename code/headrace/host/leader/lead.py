"""The leader's main loop: wait for the hosts, run the trainer, end every host with the same outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.frameworks import FRAMEWORKS
from headrace.host.control.channel import Body
from headrace.host.exporters.choose import open_exporters
from headrace.host.failures import cause_of, leave
from headrace.host.host_run import PUBLISH_INTERVAL_S, HostRun
from headrace.host.inbox import RankSaid, Stamped
from headrace.host.leader.decide import Decider, Verdict
from headrace.host.leader.job_timeline import Timeline
from headrace.host.leader.lease import Lease
from headrace.host.leader.peers import Hosts
from headrace.host.leader.summary import JobTimes, write_summary
from headrace.host.leader.watchdog import StallWatchdog, diagnose
from headrace.host.mpi.rank_processes import dump_ranks
from headrace.host.services.contract import Decision
from headrace.host.state import STARTING, STEPPING
from headrace.host.usage.oom import explained
from headrace.outcome import Outcome, RootCause

DUMP_TIMEOUT_S = 3.0
PROGRESS_INTERVAL_S = 5.0
NEWS_TIMEOUT_S = 2.3
"""Seconds to wait for a host's report once it has been asked for."""


class Leader:
    """The leader of a job, on the first dnn host."""

    def __init__(self, run: HostRun) -> None:
        plan = run.plan
        topology, settings = plan.topology, plan.settings
        self._run = run
        self._times = JobTimes(run.started)
        self._decision: Decision | None = None
        self._hosts = Hosts(topology.peers(), settings.lease_s)
        self._decider = Decider(plan, run.service, run.state, self._hosts, run.log)
        self._timeline = Timeline(topology, open_exporters(plan, run.log), run.service.worker_names())
        run.listeners += [self._hosts.take, self._decider.take, self._timeline.take, self._take]
        channels = {host.name: settings.endpoint(host.name).control_address for host in topology.peers()}
        self._leases = [
            Lease(host, address, settings.secret, settings.lease_s, self._news, run.inbox)
            for host, address in channels.items()
        ]

    def lead(self) -> Outcome:
        """Run the job from its start to its summary; return the outcome, which each reachable host has received."""
        run = self._run
        outcome = Outcome()
        try:
            run.start_servers()
            self._wait_for(self._decider.missing_for_trainer)
            self._train()
        except _Failed as failed:
            outcome = Outcome(failed.cause)
        except Exception as error:  # every host must hear of it, whatever failed
            cause = cause_of(error, run.state.host, run.log)
            outcome = Outcome(run.state.failure or cause)
        if run.state.failure and not outcome.root_cause:
            outcome = Outcome(run.state.failure)
        self._times.reach("end", time.monotonic())
        if outcome.root_cause:
            outcome = Outcome(self._settle(outcome.root_cause))
        train_s = self._times.train_s()
        if train_s is not None:
            run.log.event("training_finished", status=outcome.status, train_s=train_s)
        self._deliver(outcome)
        self._timeline.end(write_summary(run, self._hosts, self._times, outcome))
        return outcome

    def _train(self) -> None:
        """Run the trainer to its end. Raises `_Failed` with the root cause when anything ends the job."""
        run, plan, settings = self._run, self._run.plan, self._run.plan.settings
        now = time.monotonic()
        self._times.reach("trainer_started", now)
        run.log.event("training_started", hosts=len(plan.topology.dnn_hosts), ranks_per_host=plan.ranks_per_host)
        self._decider.ranks.begin(now)
        trainer = run.start_trainer()
        # The trainer imports and compiles meanwhile.
        self._wait_for(lambda: [] if trainer.ended or self._takes_batches() else self._missing_for_data())
        late = [] if trainer.ended else self._await_late()
        if late:
            run.log.say(f"training has started; still waiting for {' and '.join(late)}; late workers will join")
        watchdog = StallWatchdog(
            plan.paths.signal_dir, settings.stall_timeout_s, settings.startup_timeout_s, time.monotonic()
        )
        while True:
            self._check()
            if trainer.ended or self._decider.is_over(time.monotonic()):
                break
            silence_s = watchdog.stalled_s(time.monotonic(), run.ranks)
            late = late and self._await_late()
            if watchdog.stepped:
                run.ranks.progressed()
            if self._stepping:
                # Use this host's published status, because making a new one takes long.
                statuses = {run.state.host: run.state.published, **self._hosts.statuses}
                self._timeline.look(statuses, self._hosts.lost, time.monotonic())
            if cause := run.ranks.ended_and_awaited():
                self._fail(Verdict(cause, stalled=True))
            if silence_s is not None:
                silence = f"{silence_s:.0f} s ({watchdog.limit_name})"
                waited_for = run.service.waited_for if run.ranks.reads_data or self._takes_batches() else ""
                cause = diagnose(run.state.host, silence, run.ranks, self._statuses(), waited_for)
                self._fail(Verdict(cause, stalled=True))
            run.wait()
        run.wait(0.0)  # takes the ranks' last events
        self._times.reach("end", time.monotonic())

    def _wait_for(self, missing: Callable[[], list[str]]) -> None:
        """Wait until nothing is missing; log what is missing every few seconds. Raises `DeadlineError` when overdue."""
        run = self._run
        next_progress = run.started + PROGRESS_INTERVAL_S
        while True:
            self._check()
            if cause := run.ranks.ended_and_awaited():
                self._fail(Verdict(cause, stalled=True))
            waiting_for = missing()
            if not waiting_for:
                return
            now = time.monotonic()
            self._give_up(waiting_for, now)
            if now >= next_progress:
                run.log.say(f"waiting for {' and '.join(waiting_for)} ({now - run.started:.0f} s)")
                next_progress = now + PROGRESS_INTERVAL_S
            run.wait()

    def _await_late(self) -> list[str]:
        """During training, return the missing hosts and servers. At the deadline, give up hosts that never answered.

        A host that answers is not given up. Its servers may start slowly beside a busy trainer, and join when ready.
        """
        missing = self._missing_for_data()
        now = time.monotonic()
        if missing and self._hosts.never_heard():
            self._give_up(missing, now)
        if not missing:
            self._times.reach("workers_ready", now)
            if ready := self._run.service.ready(self._reports()):
                self._run.log.event("workers_ready", n=ready, after_s=now - self._run.started)
        return missing

    def _give_up(self, missing: list[str], now: float) -> None:
        """After the deadline, give up hosts that never answered. Raises `DeadlineError` if the job cannot go on."""
        if now - self._run.started > self._run.plan.settings.startup_timeout_s:
            self._decider.give_up(missing)

    def _takes_batches(self) -> bool:
        """Return whether ranks get batches: a PyTorch rank has reported its first batch, or the first step is made."""
        plan = self._run.plan
        shown = FRAMEWORKS[plan.settings.framework].shows_batches and any(plan.paths.signal_dir.glob("rank[0-9]*"))
        return shown or self._stepping

    @property
    def _stepping(self) -> bool:
        return self._times.has_reached("first_step")

    def _missing_for_data(self) -> list[str]:
        """Send all hosts the result of `DataService.decide` once there is one. Return what ranks still wait for."""
        run, reports = self._run, self._reports()
        if self._decision is None:
            self._decision = run.service.decide(reports, self._hosts.lost, time.monotonic())
            if self._decision:
                if self._decision.note:
                    run.log.say(self._decision.note)
                run.log.event(self._decision.event, **self._decision.fields)
                run.state.hear(self._decision.fields)
                for lease in self._leases:
                    lease.hurry()
        return self._decider.missing_for_data(reports)

    def _check(self) -> None:
        """Raise `_Failed` if the job has failed."""
        self._run.check_children()
        self._run.wait(0.0)  # replies that came while this loop was busy must count before a host counts as silent
        if self._run.ranks.has_failed:
            self._decider.ranks.rank_failed(time.monotonic())
        verdict = self._decider.verdict(time.monotonic(), self._stepping)
        if verdict:
            self._fail(verdict)

    def _fail(self, verdict: Verdict) -> None:
        """Raise `_Failed`; if the ranks have stalled, print their stacks first."""
        run, cause = self._run, verdict.cause
        if verdict.ask_ranks:
            cause = run.failed_rank(cause)
        if verdict.stalled:
            run.log.say(cause.one_line())
            for lease in self._leases:
                lease.request_dump()
            dump_ranks(run.log)
            deadline = time.monotonic() + DUMP_TIMEOUT_S
            while time.monotonic() < deadline:
                run.check_children()  # the stacks arrive meanwhile
                run.wait()
        raise _Failed(cause)

    def _settle(self, cause: RootCause) -> RootCause:
        """Return the root cause, with the kernel's reason for a kill (out of memory) if there is one.

        Under SageMaker's toolkit, mpirun kills the launchers one second after a rank has failed. So write the root
        cause to files now, without the kernel's reason, and again once the reason is known.
        """
        self._write_down(cause)
        cause = self._with_kernels_reason(cause)
        self._write_down(cause)
        return cause

    def _write_down(self, cause: RootCause) -> None:
        if self._run.plan.rank:
            leave(self._run.plan.paths, cause)
            write_summary(self._run, self._hosts, self._times, Outcome(cause), another_follows=True)

    def _with_kernels_reason(self, cause: RootCause) -> RootCause:
        """Return the root cause of a kill, with the kernel's reason (out of memory) if there is one.

        mpirun may report the kill before the rank's host reports the reason. So this waits for that host's next report.
        """
        run, hosts = self._run, self._hosts
        if cause.signal == "SIGKILL" and cause.process.startswith("rank") and cause.host in hosts.present():
            # Reports can be PUBLISH_INTERVAL_S old. Wait that long, so that the next report is newer than the kill.
            run.wait_until(lambda: False, PUBLISH_INTERVAL_S + 0.2)
            asked_at = time.monotonic()
            next(lease for lease in self._leases if lease.host == cause.host).hurry()
            run.wait_until(lambda: hosts.heard_at[cause.host] >= asked_at, NEWS_TIMEOUT_S)
        return explained(cause, self._statuses().get(cause.host, {}).get("memory") or {})

    def _deliver(self, outcome: Outcome) -> None:
        """Send all hosts the outcome, and end the leader's children. A host that does not confirm it is lost."""
        run, hosts = self._run, self._hosts
        run.state.usage.freeze()
        for lease in self._leases:
            lease.deliver(outcome)
        run.supervisor.teardown()
        # Here too, a host is lost only after a whole lease: on a bad link, a call or two may fail.
        run.wait_until(lambda: set(hosts.names) <= {*hosts.informed, *hosts.lost}, run.plan.settings.lease_s)
        for lease in self._leases:
            if lease.host not in hosts.informed and lease.host not in hosts.lost:
                # This host has not confirmed the outcome for a whole lease.
                hosts.lost.append(lease.host)
                error = f"has not received the outcome: {hosts.errors[lease.host] or 'no answer'}"
                run.log.event("host_lost", host=lease.host, error=error)
            lease.close()

    def _take(self, stamped: Stamped) -> None:
        """Record the job's stage if a rank's event marks one: `ideal_step` (the trainer is ready) or `first_step`."""
        at, happening = stamped
        if isinstance(happening, RankSaid):
            name = happening.event.name
            if name == "first_step":
                self._times.reach("first_step", at)
                self._run.state.set_phase(STEPPING)
            elif name == "ideal_step":
                self._times.reach("trainer_ready", at)

    def _news(self) -> Body:
        """Return what the leader sends a host to renew its lease: the job's phase and the data service's `Decision`."""
        decision = self._decision
        phase = STEPPING if self._stepping else STARTING
        return {"phase": phase, "decision": dict(decision.fields) if decision else None}

    def _reports(self) -> dict[str, Mapping[str, Any]]:
        """Return the data service's reports, by host."""
        own = {self._run.state.host: self._run.service.report()}
        return own | {host: status.get("data") or {} for host, status in self._hosts.present().items()}

    def _statuses(self) -> dict[str, Mapping[str, Any]]:
        return {self._run.state.host: self._run.state.status(), **self._hosts.statuses}


class _Failed(Exception):
    """Raised to end the leader's loops once the job has failed."""

    def __init__(self, cause: RootCause) -> None:
        super().__init__(cause.one_line())
        self.cause = cause
