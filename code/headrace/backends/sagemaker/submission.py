"""Submit a job to SageMaker, retry it, follow it, stop it and fetch its results."""

from __future__ import annotations

import dataclasses
import secrets
import tempfile
from pathlib import Path
from typing import Any

from botocore import exceptions

from headrace.backends import Ended
from headrace.backends.sagemaker.account import Account, aws_errors, console
from headrace.backends.sagemaker.cloud_options import CloudOptions
from headrace.backends.sagemaker.job_cost import cost_usd
from headrace.backends.sagemaker.job_follow import Console, Follower, goes_on
from headrace.backends.sagemaker.pack import files_to_send, pack_files
from headrace.backends.sagemaker.prebuilt import upload_library, upload_recipe
from headrace.backends.sagemaker.request import build_request, source_uri
from headrace.backends.sagemaker.results import fetch_results
from headrace.errors import HeadraceError, SetupError
from headrace.frameworks import FRAMEWORKS
from headrace.job.instances import InstanceTable
from headrace.job.spec import JobSpec

FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S = 30.0, 300.0
LONGEST_NAME = 63
_SHORT_OF = ("CapacityError", "ResourceLimitExceeded", "InsufficientInstanceCapacity")


class Submission:
    """One job on SageMaker, with all attempts to create it."""

    def __init__(self, spec: JobSpec, options: CloudOptions, account: Account, console: Console) -> None:
        self._spec = spec
        self._options = options
        self._account = account
        self._console = console
        self._client = account.client("sagemaker")
        self._source = source_uri(spec, options)
        self._tries = 0
        """The number of requests sent so far. Each needs a new job name, even after a refusal."""

    def start(self, retries: int) -> JobSpec:
        """Upload the source dir and create the job. Return the spec with the name of the created job.

        Raises:
            SetupError: SageMaker refuses the job, or has no capacity for it after all retries.
        """
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            archive = Path(folder) / "sourcedir.tar.gz"
            files = files_to_send(self._spec.source_dir, self._spec.left_out)
            pack_files(files, archive)
            size_kb = archive.stat().st_size / 1000
            self._console.say(f"uploading {len(files)} files ({size_kb:.0f} kB) to {self._source}")
            self._account.upload(archive, self._source)
        if recipe := FRAMEWORKS[self._spec.framework].recipe:
            upload_recipe(self._account, self._options.output_s3_uri, recipe)
            upload_library(self._account, self._options.output_s3_uri)
        return self._create(retries)

    def follow(self, spec: JobSpec, retries: int, table: InstanceTable, output_dir: Path) -> Ended:
        """Follow the job and its logs to the end; create it again if SageMaker ended it for lack of capacity."""
        while True:
            follower = Follower(self._account, spec.job_name, self._console)
            try:
                description = follower.wait()
            except KeyboardInterrupt:
                description = self._interrupted(spec, follower)
            reason = description.get("FailureReason", "")
            if (
                description["TrainingJobStatus"] != "Failed"
                or not reason.startswith(_SHORT_OF)
                or self._tries > retries
            ):
                break
            self._console.say(f"{spec.job_name}: {reason}")
            self._back_off()
            spec = self._create(retries)
        self._tell_end(spec, description, table)
        output = self._options.output_s3_uri
        results = fetch_results(self._account, output, spec.job_name, output_dir, self._console.say)
        return Ended(description["TrainingJobStatus"] == "Completed", results)

    def link(self, job_name: str) -> str:
        """Return the address of the job's page in the AWS console."""
        return f"{console(self._options.region, 'sagemaker/home')}#/jobs/{job_name}"

    def _request(self, spec: JobSpec) -> dict[str, Any]:
        return build_request(spec, self._options, secrets.token_hex(32), self._source)

    def _create(self, retries: int) -> JobSpec:
        """Create the job; while limits or lack of capacity prevent it, try again under a new name each time."""
        while True:
            spec = _renamed(self._spec, self._tries)
            self._tries += 1
            with aws_errors(f"creating the training job {spec.job_name}"):
                try:
                    self._client.create_training_job(**self._request(spec))
                    self._console.say(f"created {spec.job_name}: {self.link(spec.job_name)}")
                    return spec
                except exceptions.ClientError as error:
                    if error.response["Error"]["Code"] not in _SHORT_OF or self._tries > retries:
                        raise
                    self._console.say(f"{spec.job_name}: {error.response['Error']['Message']}")
            self._back_off()

    def _back_off(self) -> None:
        seconds = min(FIRST_BACK_OFF_S * 2 ** (self._tries - 1), LONGEST_BACK_OFF_S)
        self._console.say(f"trying again in {seconds:.0f} s, as {_renamed(self._spec, self._tries).job_name}")
        self._console.sleep(seconds)

    def _interrupted(self, spec: JobSpec, follower: Follower) -> dict[str, Any]:
        """Handle Ctrl-C: stop the job if the user confirms, else leave it running and raise KeyboardInterrupt."""
        after = goes_on(spec.job_name, self._options.region)
        if not self._console.confirm(f"Stop {spec.job_name}? It is billed until it ends. [y/N] "):
            self._console.say(f"{after} ({self.link(spec.job_name)})")
            raise KeyboardInterrupt
        try:
            with aws_errors(f"stopping {spec.job_name}"):
                try:
                    Account(self._options.region).client("sagemaker").stop_training_job(TrainingJobName=spec.job_name)
                except exceptions.ClientError as error:  # it has just ended
                    if error.response["Error"]["Code"] != "ValidationException":
                        raise
                    self._console.say(error.response["Error"]["Message"])
        except HeadraceError as error:
            raise SetupError(f"{error}; {after}") from error
        self._console.say(f"stopping {spec.job_name} within two minutes (Ctrl-C ends the wait; the job stops anyway)")
        return follower.wait()

    def _tell_end(self, spec: JobSpec, description: dict[str, Any], table: InstanceTable) -> None:
        say, status = self._console.say, description["TrainingJobStatus"]
        say(
            f"{spec.job_name}: {status}"
            + (f": {description['FailureReason']}" if "FailureReason" in description else "")
        )
        billable_s = description.get("BillableTimeInSeconds")
        if billable_s is not None:
            cost = cost_usd(spec, table, billable_s)
            hosts = len(spec.hosts())
            money = f" = about {cost:.2f} USD ({table.dated})" if cost is not None else ""
            say(f"billable: {billable_s} s × {hosts} hosts{money}")
        say(self.link(spec.job_name))


def _renamed(spec: JobSpec, tries: int) -> JobSpec:
    """Return the spec with the job name of the next attempt. `tries` is the number of attempts so far."""
    if not tries:
        return spec
    suffix = f"-{tries + 1}"
    return dataclasses.replace(spec, job_name=spec.job_name[: LONGEST_NAME - len(suffix)].rstrip("-") + suffix)
