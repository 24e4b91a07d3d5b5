"""Follow the hosts, workers, steps, time left and checkpoints of a running job by reading its hosts' log events."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.events import Event, parse_event
from headrace.job.spec import JobSpec


class Phases:
    """Receives the hosts' events; `text` describes the job's progress in one line.

    Args:
        workers: the number of workers that make batches for all ranks; 0 in local mode.
    """

    def __init__(self, hosts: int, workers: int, now: Callable[[], float] = time.monotonic) -> None:
        self._hosts, self._workers = hosts, workers
        self._now, self._began = now, now()
        self._up: set[str] = set()
        self._serving: set[tuple[str, str]] = set()
        self._phase = "set-up"
        self._step, self._total = 0, 0
        self._step_ms = 0.0
        self._checkpoint = ""
        self._leader = ""

    @classmethod
    def of(cls, spec: JobSpec) -> Phases:
        """Return the progress of a job that has not begun."""
        makers = [group for group in spec.groups if spec.local_workers == "on" or group != spec.dnn_group]
        hosts = sum(group.count for group in makers) if spec.tf_data_mode == "service" else 0
        return cls(len(spec.hosts()), hosts * spec.num_of_data_workers)

    def take(self, host: str, event: Event) -> bool:
        """Record an event of a host; return whether the phase has changed."""
        before, fields = self._phase, event.fields
        if event.name == "topology":
            self._up.add(host)
            if self._phase == "set-up":
                self._phase = "hosts"
        elif event.name == "server_ready" and fields.get("name", "").startswith("worker"):
            self._serving.add((host, fields["name"]))
        elif event.name == "feed_ready":
            self._serving.add((host, fields.get("name", "")))
        elif event.name == "training_started":
            self._phase, self._leader = "trainer starts", host
        elif event.name == "ideal_step":
            self._phase = "first batch"
        elif event.name == "first_step":
            self._phase, self._total = "training", int(_number(fields.get("total_steps", "")))
        elif event.name == "step":
            self._phase = "training"
            self._step, self._step_ms = int(_number(fields.get("step", ""))), _number(fields.get("step_ms", ""))
        elif event.name == "checkpoint":
            self._checkpoint = fields.get("epoch", "")
        elif event.name in ("training_finished", "outcome") and host == (self._leader or host):
            # Only the leader's event counts: a host that has lost the leader ends alone, while the others go on.
            self._phase = fields.get("status", "ended")
        return self._phase != before

    def take_line(self, line: str) -> None:
        """Record the event that a line of the job's log contains, if any. The line must begin with the host's name."""
        if event := parse_event(line):
            self.take(line.split(" ", 1)[0], event)

    def text(self) -> str:
        """Return a line like `2:05 training · step 120 of 440 · 86 ms a step · 0:28 left · checkpoint of epoch 1`."""
        parts = [f"{_clock(self._now() - self._began)} {self._phase}"]
        if self._phase in ("set-up", "hosts"):
            parts.append(f"hosts {len(self._up)}/{self._hosts}")
        if self._workers and self._phase not in ("training", "succeeded", "failed"):
            parts.append(f"workers {len(self._serving)}/{self._workers}")
        if self._phase == "training" and self._step:
            parts.append(f"step {self._step}" + (f" of {self._total}" if self._total else ""))
            parts.append(f"{self._step_ms:.0f} ms a step")
            if self._total > self._step:
                parts.append(f"{_clock((self._total - self._step) * self._step_ms / 1000)} left")
        if self._checkpoint:
            parts.append(f"checkpoint of epoch {self._checkpoint}")
        return " · ".join(parts)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value < float("inf") else 0.0
