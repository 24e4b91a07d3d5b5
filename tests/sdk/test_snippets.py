"""Each SDK's snippet in docs/submit.md submits the job that the page describes. The snippet runs with that SDK."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

RUNNER = Path(__file__).with_name("run_snippet.py")


def run_snippet(name, python, *arguments):
    done = subprocess.run(
        [str(python), str(RUNNER), name, *arguments], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def groups(request):
    listed = request["ResourceConfig"]["InstanceGroups"]
    return {each["InstanceGroupName"]: (each["InstanceType"], each["InstanceCount"]) for each in listed}


@pytest.mark.parametrize("name", ["sdk2", "sdk3"])
def test_the_sdks_snippets_make_the_two_groups_and_pass_the_secret(name):
    folder = ROOT / ".venv-peers" / name
    if not (folder / ".ready").exists():
        pytest.skip(f"no {folder}: `make conformance` installs it")
    request = run_snippet(name, folder / "bin" / "python")
    assert groups(request) == {"data_group": ("ml.c5.18xlarge", 2), "dnn_group": ("ml.p4d.24xlarge", 1)}
    assert len(request["Environment"]["HEADRACE_JOB_SECRET"]) == 64
    assert request["HyperParameters"]["processes_per_host"] == "8"
    if name == "sdk2":
        assert json.loads(request["HyperParameters"]["sagemaker_distribution_instance_groups"]) == ["dnn_group"]
        assert request["HyperParameters"]["sagemaker_program"] == '"launcher.py"'


def test_the_printed_request_can_be_sent_with_boto3(tmp_path):
    printed = subprocess.run(
        [sys.executable, str(ROOT / "start_job.py"), "--dry_run", "--region", "us-east-1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (tmp_path / "job.json").write_text(printed)
    sent, looked_at = run_snippet("boto3", sys.executable, str(tmp_path / "job.json")), json.loads(printed)
    assert looked_at["Environment"].pop("HEADRACE_JOB_SECRET") == "made-at-submission"
    assert len(sent["Environment"].pop("HEADRACE_JOB_SECRET")) == 64
    assert sent == looked_at
