"""An AWS account that moto simulates in this process, without network or credentials."""

import contextlib

import boto3
from headrace.backends.sagemaker.job_follow import Console
from moto import mock_aws
from moto.core.exceptions import JsonRESTError
from moto.sagemaker.models import sagemaker_backends

REGION, ACCOUNT = "us-west-2", "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/Trainer"
BUCKET = f"sagemaker-{REGION}-{ACCOUNT}"
SMALL = ["--role", ROLE, "--region", REGION, "--image_uri", "image", "--job_name", "job"]


@contextlib.contextmanager
def account(tmp_path, monkeypatch):
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "SAGEMAKER_ROLE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    waits = []
    monkeypatch.setattr("headrace.backends.sagemaker.start.Console", lambda say, ask: Console(say, ask, waits.append))
    with mock_aws():
        yield Fake(waits)


class Fake:
    """A simulated account. Tests can inspect the account, and set in advance how its jobs end."""

    def __init__(self, waits):
        self.waits = waits
        self.backend = sagemaker_backends[ACCOUNT][REGION]
        self.sagemaker = boto3.client("sagemaker", REGION)

    def names(self):
        return [job["TrainingJobName"] for job in self.sagemaker.list_training_jobs()["TrainingJobSummaries"]]

    def script(self, *ends):
        """Set how the next jobs end. For each job, give (status, FailureReason), or ("refused", error code) if AWS must
        refuse the job."""
        create, ends = self.backend.create_training_job, list(ends)

        def scripted(*args, **kwargs):
            status, reason = ends.pop(0) if ends else ("Completed", None)
            if status == "refused":
                raise JsonRESTError(reason, "The account-level service limit is 0 instances")
            job = create(*args, **kwargs)
            job.training_job_status, job.secondary_status = status, status
            job.billable_time_in_seconds = 3600
            if reason:
                job.failure_reason = reason
            return job

        self.backend.create_training_job = scripted  # no undo is needed: moto drops this function with the account
