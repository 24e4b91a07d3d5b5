"""The launcher answers wrong input with one line and exit code 1 or 2, and leaves nothing behind."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.support import ROOT, own_ports

LAUNCHER = ROOT / "code" / "launcher.py"


def launch(base_dir, *argv, **environ):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "HEADRACE_"))}
    return subprocess.run(
        [sys.executable, str(LAUNCHER), *argv],
        env=inherited | {"SAGEMAKER_BASE_DIR": str(base_dir)} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def write_config(base_dir, **changes):
    folder = base_dir / "input" / "config"
    folder.mkdir(parents=True)
    config = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "eth0"} | changes
    (folder / "resourceconfig.json").write_text(json.dumps(config))


def test_describe_prints_the_topology_as_json_and_as_a_table(tmp_path):
    groups = [
        {"instance_group_name": "data_group", "instance_type": "ml.c5.xlarge", "hosts": ["algo-1"]},
        {"instance_group_name": "dnn_group", "instance_type": "ml.g5.xlarge", "hosts": ["algo-2"]},
    ]
    write_config(tmp_path, hosts=["algo-2", "algo-1"], instance_groups=groups)
    result = launch(tmp_path, "--describe")
    assert result.returncode == 0
    described = json.loads(result.stdout)
    assert (described["leader"], described["dispatcher_host"], described["is_hetero"]) == ("algo-2", "algo-1", True)
    assert "mpirun (leader)" in result.stderr


def test_help_is_for_people_and_a_hyperparameter_named_help_is_none(tmp_path):
    assert "--describe" in launch(tmp_path, "--help").stdout
    assert launch(tmp_path, "--help", "me", "-h", "64").returncode == 2  # flags accepted; then no topology found


@pytest.mark.parametrize(
    ("config", "argv", "said"),
    [
        (None, [], "this is not a SageMaker host"),
        ({"current_host": "algo-7"}, [], "current_host 'algo-7' is not among the hosts"),
        ({"hosts": []}, [], "only its hosts train"),
        ({}, ["--num_of_data_workers", "x"], "invalid int value: 'x'"),
        ({}, ["--training_script", "none.py"], "'none.py' is not in"),
        ({}, ["--tf_data_mode", "remote"], "expected one of service, local"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(tmp_path, config, argv, said):
    if config is not None:
        write_config(tmp_path, **config)
    result = launch(tmp_path, *argv)
    assert result.returncode == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert said in (tmp_path / "output" / "failure").read_text()


@pytest.mark.parametrize(("port", "what"), [(6000, "dispatcher"), (6001, "worker"), (16000, "control channel")])
def test_a_port_in_use_is_the_root_cause(tmp_path, port, what):
    write_config(tmp_path)
    with own_ports(), socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", port))
        taken.listen()
        result = launch(tmp_path, "--tf_data_mode", "service", HEADRACE_JOB_SECRET="x")
    assert result.returncode == 1
    assert f"{port}" in (tmp_path / "output" / "failure").read_text()
    assert what in (tmp_path / "output" / "failure").read_text()
    assert "Traceback" not in result.stdout + result.stderr
    assert "event=outcome status=failed" in result.stdout
    assert not (tmp_path / "headrace").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    write_config(tmp_path)
    (tmp_path / "output").write_text("a file where a folder should be")
    result = launch(tmp_path, HEADRACE_JOB_SECRET="x")
    assert result.returncode == 1
    assert "Cannot write to" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
