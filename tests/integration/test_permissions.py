"""The IAM policies of docs/access.md allow the calls that headrace makes, and no others."""

import json
import re

import boto3
import pytest
from botocore.client import BaseClient
from headrace.__main__ import main as headrace
from headrace.cli.start import main
from headrace.errors import SetupError
from headrace.job.artifact_cache import Store

from tests.integration.account import BUCKET, REGION, SMALL
from tests.support import ROOT

ACTIONS = {"HeadBucket": "ListBucket", "ListObjectsV2": "ListBucket", "HeadObject": "GetObject"}
"""Maps an S3 operation to its IAM action, if their names differ. Source: the S3 documentation."""
NO_PERMISSION = {"sts:GetCallerIdentity"}
OF_SAGEMAKER = re.compile(
    r"iam:PassRole|sagemaker:AddTags|s3:AbortMultipartUpload|ecr:.*|logs:.*|cloudwatch:PutMetricData"
)
"""Actions that policies may allow even if no test calls them. boto3 calls `s3:AbortMultipartUpload` if an upload in
parts fails. When headrace creates a job, SageMaker checks the permissions `iam:PassRole` and `sagemaker:AddTags`.
SageMaker itself calls the actions of `ecr`, `logs` and `cloudwatch`, with the job's role."""


def policies():
    blocks = re.findall(r"```json\n(\{\"Version\".*?)```", (ROOT / "docs" / "access.md").read_text(), re.DOTALL)
    return [{action for part in json.loads(block)["Statement"] for action in part["Action"]} for block in blocks]


@pytest.fixture
def called(monkeypatch):
    """The IAM actions of all calls to AWS."""
    found, call = set(), BaseClient._make_api_call

    def noted(self, operation, arguments):
        found.add(f"{self.meta.service_model.signing_name}:{ACTIONS.get(operation, operation)}")
        return call(self, operation, arguments)

    monkeypatch.setattr(BaseClient, "_make_api_call", noted)
    return found


def test_who_submits_may_do_just_what_start_job_and_the_dashboard_do(aws, called):
    boto3.client("iam", REGION).create_role(RoleName="Mine", AssumeRolePolicyDocument="{}")
    called.clear()
    assert main(["--role", "Mine", *SMALL[2:]]) == 0
    assert headrace(["dashboard", "job", "--region", REGION, "--create"]) == 0
    theirs = {"sagemaker:StopTrainingJob"}  # called at Ctrl-C; tests/integration/test_submit.py tests this call
    allowed, _ = policies()
    named = {each.replace("monitoring:", "cloudwatch:") for each in called | theirs} - NO_PERMISSION
    assert named - allowed == set()
    assert {each for each in allowed - named if not OF_SAGEMAKER.fullmatch(each)} == set()


def test_the_jobs_role_may_fetch_and_keep_what_hosts_build(aws, called, tmp_path):
    s3 = boto3.client("s3", REGION)
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    called.clear()
    store, wheel = Store(f"s3://{BUCKET}/headrace/wheels", s3), tmp_path / "x.whl"
    wheel.write_text("x")
    store.keep(wheel, "key/x.whl")
    assert store.fetch_kept("key", ".whl", tmp_path / "there").read_text() == "x"
    with pytest.raises(SetupError):
        store.fetch("none", tmp_path / "none")
    _, allowed = policies()
    assert called == {each for each in allowed if not OF_SAGEMAKER.fullmatch(each)}
