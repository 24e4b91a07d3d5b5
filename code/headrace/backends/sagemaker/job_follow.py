"""Follows a job on SageMaker to its end: its status, and its logs as they come.

The job does not need us. So a network that is away for a while, credentials that expire, or too many questions at once
end nothing: it is asked again, with whatever credentials there are by then.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from headrace.backends.sagemaker.account import Account, aws_errors, is_denied
from headrace.backends.sagemaker.console import Console
from headrace.backends.sagemaker.logs import LOG_GROUP, LogTail
from headrace.errors import HeadraceError, SetupError

POLL_S = 10.0
GIVE_UP_S = 3600.0
"""Of questions without an answer."""
LAST_LINES_S = 120.0
"""How long after a job's end its last lines are waited for: CloudWatch takes lines in some seconds late."""
ENDED = ("Completed", "Failed", "Stopped")


class Follower:
    """One job, until it has ended.

    Args:
        now: seconds on a clock that only goes forward.
    """

    def __init__(
        self, account: Account, job_name: str, console: Console, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._account, self._job_name, self._console, self._now = account, job_name, console, now
        self._client = account.client("sagemaker")
        self._logs = LogTail(account.client("logs"), job_name, console.say)
        self._told: list[Any] = []

    def wait(self) -> dict[str, Any]:
        """The job's description once it has ended; status changes and log lines are told meanwhile, each once.

        Raises:
            SetupError: these credentials may not ask, or nothing was answered for an hour. The job goes on.
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
        """Read the logs until no line has come between two looks; the deadline and Ctrl-C end it too."""
        until = self._now() + LAST_LINES_S
        self._logs.poll()
        with contextlib.suppress(KeyboardInterrupt):
            self._console.sleep(POLL_S)
            while self._logs.poll():
                if self._now() > until:
                    self._console.say(f"log lines of {self._job_name} still come; CloudWatch has all, in {LOG_GROUP}")
                    break
                self._console.sleep(POLL_S)
        self._logs.release()

    def _describe(self) -> dict[str, Any]:
        failing_since: float | None = None
        while True:
            try:
                with aws_errors(f"asking after {self._job_name}"):
                    if failing_since is not None:
                        self._renew()
                    description: dict[str, Any] = self._client.describe_training_job(TrainingJobName=self._job_name)
                    return description
            except HeadraceError as error:
                if failing_since is None:
                    failing_since = self._now()
                    self._console.say(f"{error}")
                    self._console.say(f"{self._job_name} does not need this; asking again every {POLL_S:.0f} s")
                if is_denied(error) or self._now() - failing_since > GIVE_UP_S:
                    raise SetupError(f"{error}; {goes_on(self._job_name, self._account.region)}") from error
            self._console.sleep(POLL_S)

    def _renew(self) -> None:
        """Clients with the credentials that there are now."""
        self._account = Account(self._account.region)
        self._client = self._account.client("sagemaker")
        self._logs.use(self._account.client("logs"))


def goes_on(job_name: str, region: str) -> str:
    """What to do about a job that nobody follows any more."""
    stop = f"aws sagemaker stop-training-job --training-job-name {job_name} --region {region}"
    return f"{job_name} goes on; to stop it: {stop}; its results, when it has ended: headrace report {job_name}"
