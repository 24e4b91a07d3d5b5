"""Follow a job on SageMaker to its end: print its status and its logs as they come.

The job does not depend on the follower. After a lost network, expired credentials or throttling, the follower tries
again, with the credentials that are configured at that time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.backends.sagemaker.account import Account, aws_errors, is_denied
from headrace.backends.sagemaker.logs import LOG_GROUP, LogTail
from headrace.errors import HeadraceError, SetupError

POLL_S = 10.0
GIVE_UP_S = 3600.0
"""Seconds without a reply from AWS after which the follower gives up."""
LAST_LINES_S = 120.0
"""Longest wait, in seconds, for the last log lines after a job's end: CloudWatch shows lines some seconds late."""
ENDED = ("Completed", "Failed", "Stopped")


@dataclass(frozen=True)
class Console:
    """Functions by which a submission prints a line, asks a yes-or-no question, and sleeps; tests replace them."""

    say: Callable[[str], None]
    confirm: Callable[[str], bool]
    sleep: Callable[[float], None] = time.sleep


class Follower:
    """Follows one job to its end.

    Args:
        now: returns the seconds of a clock that only goes forward.
    """

    def __init__(
        self, account: Account, job_name: str, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._account, self._job_name, self._console, self._now = account, job_name, console, now
        self._client = account.client("sagemaker")
        self._logs = LogTail(account.client("logs"), job_name, console.say)
        self._told: list[Any] = []

    def wait(self) -> dict[str, Any]:
        """Print status changes and log lines until the job has ended; return SageMaker's description of the job.

        Raises:
            SetupError: these credentials lack the permission, or AWS has not replied for an hour. The job goes on.
        """
        while True:
            description = self._describe()
            transitions = description.get("SecondaryStatusTransitions", [])
            for record in transitions[len(self._told) :]:
                self._console.say(
                    f"{self._job_name}: {record['Status']}: {record.get('StatusMessage', '')}".rstrip(": ")
                )
            self._told = transitions
            if description["TrainingJobStatus"] in ENDED:
                self._read_last_lines()
                return description
            self._logs.poll()
            self._console.sleep(POLL_S)

    def _read_last_lines(self) -> None:
        """Print the last log lines until no more come, the deadline passes, or the user presses Ctrl-C."""
        until = self._now() + LAST_LINES_S
        self._logs.poll()
        with contextlib.suppress(KeyboardInterrupt):
            self._console.sleep(POLL_S)
            while self._logs.poll():
                if self._now() > until:
                    self._console.say(
                        f"{self._job_name} still has new log lines; read the rest in CloudWatch, in {LOG_GROUP}"
                    )
                    break
                self._console.sleep(POLL_S)
        self._logs.release()

    def _describe(self) -> dict[str, Any]:
        failing_since: float | None = None
        while True:
            try:
                with aws_errors(f"looking up {self._job_name}"):
                    if failing_since is not None:
                        self._renew()
                    description: dict[str, Any] = self._client.describe_training_job(TrainingJobName=self._job_name)
                    return description
            except HeadraceError as error:
                if failing_since is None:
                    failing_since = self._now()
                    self._console.say(f"{error}")
                    self._console.say(f"the job is unaffected; retrying every {POLL_S:.0f} s")
                if is_denied(error) or self._now() - failing_since > GIVE_UP_S:
                    raise SetupError(f"{error}; {goes_on(self._job_name, self._account.region)}") from error
            self._console.sleep(POLL_S)

    def _renew(self) -> None:
        """Make new clients, with the credentials that are configured now."""
        self._account = Account(self._account.region)
        self._client = self._account.client("sagemaker")
        self._logs.client = self._account.client("logs")


def goes_on(job_name: str, region: str) -> str:
    """Return a message on how to stop a job that is no longer followed, and how to get its results."""
    stop = f"aws sagemaker stop-training-job --training-job-name {job_name} --region {region}"
    return f"{job_name} goes on. Stop it with `{stop}`; after its end, get results with `headrace report {job_name}`"
