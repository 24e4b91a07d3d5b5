"""start_job.py's flags make the job that they describe."""

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.__main__ import main as headrace
from headrace.cli.flags import build_parser, build_spec, parse_cpus
from headrace.cli.start import main
from headrace.errors import InputError
from headrace.job.instances import read_instances

ROOT = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, 6_000, tzinfo=datetime.timezone.utc)


def spec(*argv):
    return build_spec(build_parser().parse_args(argv), NOW, read_instances())


def test_the_default_job_is_heterogeneous_with_the_service():
    job = spec()
    assert {group.name: (group.instance_type, group.count) for group in job.groups} == {
        "data_group": ("ml.c5.18xlarge", 2),
        "dnn_group": ("ml.p4d.24xlarge", 1),
    }
    assert (job.tf_data_mode, job.num_of_data_workers) == ("service", 1)
    assert job.job_name == "hetero-service-20260102-030405-006"


def test_without_a_data_group_the_default_is_local_mode_without_workers():
    job = spec("--no-is_hetero", "--num_of_dnn_instances", "2")
    assert [group.count for group in job.groups] == [2]
    assert (job.tf_data_mode, job.num_of_data_workers) == ("local", 0)


def test_a_homogeneous_job_can_use_the_service():
    job = spec("--no-is_hetero", "--tf_data_mode", "service")
    assert (job.tf_data_mode, job.num_of_data_workers) == ("service", 1)


def test_hyperparameters_come_from_their_own_flags_and_from_the_general_one():
    job = spec("--batch_size=8", "--epochs=2", "--hyperparameter", "model=small_cnn", "--hyperparameter", "x=a=b")
    assert job.hyperparameters == {"batch_size": "8", "epochs": "2", "model": "small_cnn", "x": "a=b"}


def test_in_a_homogeneous_job_a_channel_of_the_dnn_group_is_seen_by_all():
    assert spec("--no-is_hetero", "--channel", "t=/d@dnn_group").channels[0].groups == ()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--epochs", "0"], "--epochs is 0"),
        (["--epochs", "x"], "invalid int value: 'x'"),
        (["--hyperparameter", "alone"], "NAME=VALUE"),
        (["--hyperparameter", "epochs=1", "--epochs", "2"], "given twice"),
        (["--channel", "alone"], "NAME=URI"),
        (["--channel", "t=/d@gpus"], "names group 'gpus'"),
        (["--num_of_data_instances", "0"], "1 to 1000; for a job without data hosts give --no-is_hetero"),
        (["--num_of_dnn_instances", "1000000000"], "a group has 1 to 1000"),
        (["--num_of_data_workers", "1000"], "expected 0 to 999"),
        (["--processes_per_host", "1000"], "expected 1 to 999"),
        (["--training_script", "examples"], "examples is a folder"),
        (["--tf_data_mode", "local"], "leaves the data group idle"),
        (["--training_script", "missing.py"], "holds no missing.py"),
        (["--unknown", "1"], "unrecognized arguments: --unknown"),
        (["--tf_data_mode", "x"], "invalid choice: 'x'"),
        (["--epoch", "1"], "unrecognized arguments: --epoch 1; did you mean --epochs?"),
        (["--num_data_instances=2"], "did you mean --num_of_data_instances?"),
        (["--hyperparameter", "processes_per_host=8"], "give --processes_per_host instead"),
        (["--hyperparameter", "lease_s=x"], "invalid float value: 'x'"),
        (["--training_script", "/etc/passwd"], "inside the source dir"),
        (["--channel", "..=/d"], "channel name '..'"),
        (["--no-is_cloud_job", "--cpus", "dnn_group=3-1"], "--cpus 'dnn_group=3-1'"),
        (["--no-is_cloud_job", "--cpus", "gpus=1"], "has no group 'gpus'"),
        (["--no-is_cloud_job", "--cpus", "dnn_group=a"], "--cpus 'dnn_group=a'"),
        (["--no-is_cloud_job", "--cpus", "dnn_group=4096"], "no processor 4096"),
        (["--no-is_cloud_job", "--channel", "t=/no/such/folder"], "no such folder"),
        (["--no-is_cloud_job", "--channel", f"t={__file__}"], "a channel is a folder, and this is a file"),
        (["--no-is_hetero", "--channel", "t=/d@data_group"], "no host would see it"),
        (["--no-is_cloud_job", "--channel", "t=s3://bucket/x"], "a local folder"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(argv, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.cli.start.check_installation", lambda *modules: None)
    argv = argv if "--no-is_cloud_job" in argv else ["--no-is_cloud_job", *argv]
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_flags_of_the_other_place_are_told(capsys):
    assert main(["--cpus", "dnn_group=0"]) == 2
    assert "--cpus is only for jobs on this machine" in capsys.readouterr().err


def test_cpu_lists():
    assert parse_cpus("data_group=0,2-4;dnn_group=1", True) == {
        "data_group": frozenset({0, 2, 3, 4}),
        "dnn_group": frozenset({1}),
    }
    assert parse_cpus("dnn_group=0", False) == {"homogeneousCluster": frozenset({0})}
    for wrong in ("data_group=0", "dnn_group=0-300000000"):
        with pytest.raises(InputError):
            parse_cpus(wrong, False)


def test_help_needs_neither_tensorflow_nor_anything_installed():
    code = "import sys; sys.argv = ['start_job.py', '--help']; sys.path.insert(0, 'code')\n"
    code += "from headrace.cli.start import main\ntry: main(['--help'])\n"
    code += "finally: assert not {'tensorflow', 'grpc', 'psutil', 'boto3'} & set(sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "--tf_data_mode" in result.stdout


def test_a_python_without_the_packages_is_told_what_to_do(capsys, monkeypatch):
    monkeypatch.setattr("headrace.cli.start.find_spec", lambda module: None)
    assert main(["--no-is_cloud_job"]) == 1
    error = capsys.readouterr().err
    assert "has no tensorflow: in a checkout, `make setup`" in error
    assert error.count("\n") == 1


def test_what_the_system_refuses_is_told_in_a_line(capsys, monkeypatch):
    monkeypatch.setattr("headrace.cli.start.check_installation", lambda *modules: None)
    assert main(["--no-is_cloud_job", "--source_dir", 300 * "x"]) == 1
    error = capsys.readouterr().err
    assert "File name too long" in error and error.count("\n") == 1


def test_a_python_that_lacks_even_what_is_needed_to_begin_is_told_which_to_use():
    result = subprocess.run(
        [sys.executable, "-S", "start_job.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "use .venv/bin/python" in result.stderr and "pathspec" in result.stderr


def test_output_that_nobody_reads_or_that_fits_nowhere_ends_without_a_traceback():
    command = f"PYTHONPATH={ROOT / 'code'} {sys.executable} -u -m headrace --help"
    full = subprocess.run(f"{command} > /dev/full", shell=True, capture_output=True, text=True, check=False)
    assert (full.returncode, full.stderr.count("\n")) == (1, 1) and "No space left" in full.stderr
    unread = subprocess.run(f"{command} | true", shell=True, capture_output=True, text=True, check=False)
    assert unread.stderr == ""


def test_headrace_alone_prints_its_commands_on_one_screen(capsys):
    assert headrace([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 32 and max(map(len, lines)) <= 110
    for command in (
        "new",
        "setup",
        "run",
        "submit",
        "preflight",
        "runs",
        "report",
        "plan",
        "dashboard",
        "lint",
        "image",
    ):
        assert any(line.startswith(f"  {command} ") for line in lines), command


def test_run_takes_no_flag_of_sagemaker_and_submit_none_of_this_machine(capsys):
    assert headrace(["run", "--role", "R"]) == headrace(["submit", "--cpus", "dnn_group=0"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "headrace run: error: unrecognized arguments: --role R" in errors[0]
    assert "headrace submit: error: unrecognized arguments: --cpus" in errors[1]


def test_run_takes_the_flag_with_which_start_job_runs_here(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert headrace(["run", "--no-is_cloud_job"]) == 2
    assert "holds no train_dnn.py" in capsys.readouterr().err


def test_runs_are_listed_the_newest_first(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert headrace(["runs"]) == 2
    assert "runs: no such folder" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    assert headrace(["runs"]) == 0
    assert capsys.readouterr().out == "no runs in runs\n"
    for at, name in enumerate(("older", "newer", "broken")):
        (tmp_path / "runs" / name).mkdir()
        summary = tmp_path / "runs" / name / "summary.json"
        hosts = {"algo-1": {"group": "data_group"}, "algo-2": {"group": "dnn_group"}}
        text = json.dumps({"job_name": name, "outcome": "succeeded", "hosts": hosts})
        summary.write_text(text if name != "broken" else "{")
        os.utime(summary, (at, at))
    (tmp_path / "runs" / "killed" / "algo-1").mkdir(parents=True)
    assert headrace(["runs"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split()[0] for row in rows] == ["killed", "broken", "newer", "older"]
    assert "was killed" in rows[0] and "not valid JSON" in rows[1] and "1 data + 1 dnn" in rows[2]
