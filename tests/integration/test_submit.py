"""Jobs are submitted, followed and reported, in an account that moto simulates."""

import io
import json
import shutil
import subprocess
import tarfile
import time

import boto3
import pytest
from headrace.__main__ import main as headrace
from headrace.backends.sagemaker import submission as client_module
from headrace.backends.sagemaker.job_follow import Console
from headrace.backends.sagemaker.logs import LOG_GROUP
from headrace.cli.start import main
from headrace.rank.context import EMPTY_REPORT

from tests.integration.account import BUCKET, REGION, ROLE, SMALL
from tests.support import ROOT, run_job


def test_a_job_is_submitted_followed_and_ends_well(aws, capsys):
    aws.script()
    assert main([*SMALL, "--channel", "training=s3://data/images@data_group"]) == 0
    job = aws.sagemaker.describe_training_job(TrainingJobName="job")
    assert [group["InstanceCount"] for group in job["ResourceConfig"]["InstanceGroups"]] == [2, 1]
    assert job["RoleArn"] == ROLE
    said = capsys.readouterr().err
    assert "/jobs/job" in said
    assert "billable: 3600 s × 3 hosts = about 32.59 USD" in said
    assert "job: Completed" in said


TWO_MINUTES = ["--max_run", "120"]
"""Flag that ends a job after two minutes, so that a job on the hosts of SMALL costs less than ten dollars."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "train_dnn.py").write_text("")
    monkeypatch.chdir(tmp_path)


def submit_by_command(*argv):
    return headrace(["submit", *SMALL, *argv])


def test_what_can_cost_more_than_ten_dollars_is_refused_where_nobody_can_be_asked(aws, project, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert submit_by_command() == 2
    said = capsys.readouterr().err
    *_, error = said.splitlines()
    assert "add --yes" in error and "USD" in error
    assert "at most" in said.removesuffix(error)
    assert aws.names() == []
    assert submit_by_command("--yes") == 0
    assert aws.names() == ["job"]


def test_what_costs_little_is_submitted_without_asking(aws, project, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert submit_by_command(*TWO_MINUTES) == 0
    assert aws.names() == ["job"]


@pytest.mark.parametrize(("answer", "code", "names"), [("y\n", 0, ["job"]), ("\n", 2, []), ("", 2, [])])
def test_a_terminal_is_asked_about_the_price(aws, project, monkeypatch, capsys, answer, code, names):
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert submit_by_command() == code
    assert "Submit it? [y/N]" in capsys.readouterr().out
    assert aws.names() == names


def test_the_old_command_asks_too_and_says_what_to_use(aws, project, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert headrace(["start", *SMALL]) == 2
    assert "use `headrace run`" in capsys.readouterr().err
    assert aws.names() == []


def test_the_uploaded_archive_holds_exactly_the_source_dir(aws):
    assert main(SMALL) == 0
    body = boto3.client("s3", REGION).get_object(Bucket=BUCKET, Key="headrace/job/source/sourcedir.tar.gz")["Body"]
    with tarfile.open(fileobj=io.BytesIO(body.read())) as tar:
        packed = {member.name: tar.extractfile(member).read() for member in tar}
    code = ROOT / "code"
    tracked = subprocess.run(["git", "ls-files"], cwd=code, capture_output=True, text=True, check=True).stdout.split()
    assert set(tracked) <= set(packed)
    told = packed.pop("constraints.txt")  # only the versions that must be the same on all hosts
    assert b"tensorflow==" in told and (code / "constraints.txt").read_bytes().startswith(told)
    assert {name: (code / name).read_bytes() for name in packed} == packed
    submitted = aws.sagemaker.describe_training_job(TrainingJobName="job")["HyperParameters"]
    assert json.loads(submitted["sagemaker_submit_directory"]) == f"s3://{BUCKET}/headrace/job/source/sourcedir.tar.gz"


def test_hosts_find_the_recipe_of_the_horovod_build_in_the_bucket(aws):
    assert main(SMALL) == 0
    body = boto3.client("s3", REGION).get_object(Bucket=BUCKET, Key="headrace/wheels/recipe.tar.gz")["Body"]
    with tarfile.open(fileobj=io.BytesIO(body.read())) as tar:
        assert {"build.py", "sdist.txt"} <= set(tar.getnames())


def test_without_capacity_it_is_tried_again_under_a_fresh_name_each_time(aws, monkeypatch, capsys):
    reason = "CapacityError: Unable to provision requested ML compute capacity. Please retry."
    aws.script(("Failed", reason), ("Failed", reason), ("Completed", None))
    requests, build = [], client_module.build_request
    monkeypatch.setattr(client_module, "build_request", lambda *given: requests.append(build(*given)) or requests[-1])
    assert main(SMALL) == 0
    assert sorted(aws.names()) == ["job", "job-2", "job-3"]
    secrets = [request["Environment"]["HEADRACE_JOB_SECRET"] for request in requests]
    assert len(set(secrets)) == len(secrets)
    assert [seconds for seconds in aws.waits if seconds >= 30] == [30, 60]
    assert "trying again in 30 s, as job-2" in capsys.readouterr().err


def test_a_name_is_never_given_twice_whether_creation_is_refused_or_capacity_lacks(aws, capsys):
    no_capacity = ("Failed", "CapacityError: Unable to provision requested ML compute capacity. Please retry.")
    aws.script(("refused", "ResourceLimitExceeded"), no_capacity, ("refused", "ResourceLimitExceeded"), no_capacity)
    assert main([*SMALL, "--retries", "4"]) == 0
    assert sorted(aws.names()) == ["job-2", "job-4", "job-5"]
    assert [seconds for seconds in aws.waits if seconds >= 30] == [30, 60, 120, 240]
    assert "job-5: Completed" in capsys.readouterr().err


def test_at_the_accounts_limit_it_is_tried_again_and_then_given_up(aws, capsys):
    aws.script(*[("refused", "ResourceLimitExceeded")] * 3)
    assert main([*SMALL, "--retries", "2"]) == 1
    assert aws.names() == []
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("start_job.py: error: creating the training job job-3: AWS refuses: ResourceLimitExceeded")


def test_a_failed_job_tells_its_reason_and_returns_1(aws, capsys):
    aws.script(("Failed", "AlgorithmError: rank 0 on algo-3: ValueError: no"))
    assert main(SMALL) == 1
    assert "job: Failed: AlgorithmError: rank 0 on algo-3: ValueError: no" in capsys.readouterr().err
    assert aws.names() == ["job"]


@pytest.mark.parametrize(("answer", "stopped"), [(True, True), (False, False)])
def test_ctrl_c_asks_whether_to_stop_the_job(aws, monkeypatch, capsys, answer, stopped):
    aws.script(("InProgress", None))
    asked, stop_calls = [], []

    def interrupted(seconds):
        raise KeyboardInterrupt

    def confirm(question):
        asked.append(question)
        return answer

    def client(session, service, *args, original=boto3.Session.client, **kwargs):
        made = original(session, service, *args, **kwargs)
        if service == "sagemaker":  # moto cannot stop a job
            made.stop_training_job = stop
        return made

    def stop(**given):
        stop_calls.append(given["TrainingJobName"])
        aws.backend.training_jobs["job"].training_job_status = "Stopped"

    monkeypatch.setattr(boto3.Session, "client", client)
    monkeypatch.setattr(
        "headrace.backends.sagemaker.start.Console", lambda say, ask: Console(say, confirm, interrupted)
    )
    assert main(SMALL) == 1
    assert asked == ["Stop job? It is billed until it ends. [y/N] "]
    assert stop_calls == (["job"] if stopped else [])
    said = capsys.readouterr().err
    assert ("job: Stopped" in said) == stopped
    assert ("stop-training-job --training-job-name job" in said) == (not stopped)


def test_without_waiting_it_returns_at_once(aws):
    aws.script(("InProgress", None))
    assert main([*SMALL, "--no-wait"]) == 0
    assert aws.waits == []


def test_log_lines_have_host_group_and_role_in_front(aws, capsys):
    logs = boto3.client("logs", REGION)
    logs.create_log_group(logGroupName=LOG_GROUP)
    lines = {
        "algo-1": ["pip says hello", "headrace event=topology host=algo-1 group=data_group role=data", "ready"],
        "algo-3": ["headrace event=topology host=algo-3 group=dnn_group role=dnn", "step"],
    }
    for host, said in lines.items():
        stream = f"job/{host}-1700000000"
        logs.create_log_stream(logGroupName=LOG_GROUP, logStreamName=stream)
        now = int(time.time() * 1000)
        events = [{"timestamp": now, "message": line} for line in said]
        logs.put_log_events(logGroupName=LOG_GROUP, logStreamName=stream, logEvents=events)
    assert main(SMALL) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if " | " in line]
    assert "algo-1 data_group data | pip says hello" in told
    assert "algo-1 data_group data | ready" in told
    assert "algo-3 dnn_group dnn | step" in told
    assert len(told) == 5


def test_the_jobs_summary_is_fetched_and_told(aws, capsys, tmp_path):
    boto3.client("s3", REGION).create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    host = {
        "group": "dnn_group",
        "instance_type": "ml.p4d.24xlarge",
        "exit_code": 0,
        "cpus": 96,
        "cpu_utilization": 0.5,
    }
    summary = EMPTY_REPORT | {
        "job_name": "job", "outcome": "succeeded", "root_cause": None, "steps": 40, "ideal_step_time_ms": 10.0,
        "step_time_ms": {"median": 12.0, "mean": 12.0, "p90": 12.0}, "samples_per_s": 100.0, "input_bound_share": 0.2,
        "time_to_first_step_s": 20.0, "hosts": {"algo-1": host},
    }  # fmt: skip
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        content = json.dumps(summary).encode()
        info = tarfile.TarInfo("data/summary.json")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
        for name in ("data/evaluation/summary.json", "data/evaluation/tensorboard/events", "data/predictions.npy"):
            tar.addfile(tarfile.TarInfo(name))  # the script's own
        for name in ("data/metrics.jsonl", "data/tensorboard/events.1", "data/tensorboard/train/events.2"):
            tar.addfile(tarfile.TarInfo(name))
    boto3.client("s3", REGION).put_object(
        Bucket=BUCKET, Key="headrace/job/output/output.tar.gz", Body=packed.getvalue()
    )
    assert main(SMALL) == 0
    assert "40 of 12 ms (median; ideal 10 ms)" in capsys.readouterr().out
    assert json.loads((tmp_path / "runs" / "job" / "summary.json").read_text()) == summary
    fetched = tmp_path / "runs" / "job"
    assert sorted(str(path.relative_to(fetched)) for path in fetched.rglob("*") if path.is_file()) == [
        "metrics.jsonl",
        "summary.json",
        "tensorboard/events.1",
        "tensorboard/train/events.2",
    ]

    # The job's name is enough for its report, also on a machine that has not submitted it.
    shutil.rmtree(tmp_path / "runs")
    assert headrace(["report", "job", "--region", REGION, "--price", "ml.p4d.24xlarge=36"]) == 0
    said = capsys.readouterr().out
    assert "job is input-bound: it waited for data 20%" in said and "36.00" in said
    assert (tmp_path / "runs" / "job" / "report.html").is_file()


def test_a_report_of_a_job_that_is_none_or_left_nothing_is_refused_in_a_line(aws, capsys):
    for name, region, message in (
        (
            "never-was",
            ["--region", REGION],
            f"never-was is not a local folder; cannot fetch the job: there is no training job 'never-was' in {REGION}",
        ),
        ("never-was", [], "never-was is not a local folder; cannot fetch the job: no region: give --region"),
        ("no/such/folder", [], "no/such/folder: no such folder"),
    ):
        assert headrace(["report", name, *region]) == 2
        assert message in capsys.readouterr().err
    assert main(SMALL) == 0
    capsys.readouterr()
    for body in (None, b"\x1f\x8b\x08truncated"):
        if body:
            boto3.client("s3", REGION).put_object(Bucket=BUCKET, Key="headrace/job/output/output.tar.gz", Body=body)
        assert headrace(["plan", "job", "--region", REGION]) == 2
        assert "job (Completed) has no results of headrace" in capsys.readouterr().err


def test_a_role_may_be_given_by_name(aws, capsys):
    iam = boto3.client("iam")
    iam.create_role(RoleName="Mine", Path="/teams/", AssumeRolePolicyDocument="{}")
    named = ["--role", "Mine", *SMALL[2:]]
    assert main(named) == 0
    assert aws.sagemaker.describe_training_job(TrainingJobName="job")["RoleArn"].endswith(":role/teams/Mine")
    assert main(["--role", "Nobody", *SMALL[2:]]) == 2
    assert "this account has no such role" in capsys.readouterr().err


def test_the_dashboard_is_created_and_printed(aws, capsys):
    from headrace.__main__ import main as headrace

    assert main(SMALL) == 0
    capsys.readouterr()
    assert headrace(["dashboard", "job", "--region", REGION]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert headrace(["dashboard", "job", "--region", REGION, "--create"]) == 0
    kept = boto3.client("cloudwatch", REGION).get_dashboard(DashboardName="job")["DashboardBody"]
    assert json.loads(kept) == printed
    assert headrace(["dashboard", "none", "--region", REGION]) == 2


def test_the_archive_unpacked_runs_as_it_is_on_simulated_hosts(tmp_path):
    from headrace.backends.sagemaker.pack import files_to_send, pack_files

    pack_files(files_to_send(ROOT / "code"), tmp_path / "sourcedir.tar.gz")
    with tarfile.open(tmp_path / "sourcedir.tar.gz") as tar:
        tar.extractall(tmp_path / "unpacked")
    (tmp_path / "unpacked" / "hello.py").write_text("from mpi4py import MPI\n")
    run = run_job(
        tmp_path, f"--source_dir={tmp_path / 'unpacked'}", "--training_script=hello.py", "--num_of_data_instances=1"
    )
    assert run.code == 0, run.output
    assert run.events("training_started")
