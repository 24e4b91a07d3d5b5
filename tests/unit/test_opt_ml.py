"""A simulated host finds the files that a SageMaker host finds."""

import json
from pathlib import Path

import pytest
from headrace.backends.local.opt_ml import (
    refuse_hidden,
    resource_config,
    script_arguments,
    toolkit_environ,
    write_host_folder,
)
from headrace.cluster.sagemaker import read_topology
from headrace.errors import InputError
from headrace.job.spec import Channel, InstanceGroup, JobSpec

CODE = Path(__file__).parents[2] / "code"


def spec(tmp_path):
    groups = (InstanceGroup("data_group", "ml.c5.xlarge", 2), InstanceGroup("dnn_group", "ml.g5.xlarge", 1))
    (tmp_path / "images").mkdir()
    channels = (
        Channel("training", str(tmp_path / "images"), ("data_group",)),
        Channel("both", str(tmp_path / "images")),
    )
    return JobSpec("job", groups, "service", 2, 1, {"b": "2", "a": "1"}, channels, CODE)


def test_every_host_reads_the_same_topology_from_its_folder(tmp_path):
    job = spec(tmp_path)
    for host in job.hosts():
        write_host_folder(tmp_path / host, job, host)
        topology = read_topology(tmp_path / host, {})
        assert topology.current.name == host
        assert topology.leader.name == "algo-3"
        assert (tmp_path / host / "code" / "launcher.py").is_file()


def test_a_channel_is_seen_by_its_groups_only(tmp_path):
    job = spec(tmp_path)
    write_host_folder(tmp_path / "algo-1", job, "algo-1")
    write_host_folder(tmp_path / "algo-3", job, "algo-3")
    assert {path.name for path in (tmp_path / "algo-1/input/data").iterdir()} == {"training", "both"}
    assert {path.name for path in (tmp_path / "algo-3/input/data").iterdir()} == {"both"}
    config = json.loads((tmp_path / "algo-3/input/config/inputdataconfig.json").read_text())
    assert set(config) == {"both"}
    assert "SM_CHANNEL_TRAINING" not in toolkit_environ(job, "algo-3", Path("/opt/ml"))


def test_hyperparameters_are_json_in_the_file_and_plain_sorted_arguments(tmp_path):
    job = spec(tmp_path)
    write_host_folder(tmp_path / "algo-1", job, "algo-1")
    config = json.loads((tmp_path / "algo-1/input/config/hyperparameters.json").read_text())
    assert config["a"] == '"1"'
    assert config["sagemaker_program"] == '"launcher.py"'
    words = script_arguments(job)
    assert words[:4] == ["-a", "1", "-b", "2"]
    assert "sagemaker_program" not in " ".join(words)


def test_the_config_names_all_groups(tmp_path):
    groups = resource_config(spec(tmp_path), "algo-2")["instance_groups"]
    assert [(group["instance_group_name"], group["hosts"]) for group in groups] == [
        ("data_group", ["algo-1", "algo-2"]),
        ("dnn_group", ["algo-3"]),
    ]


def test_folders_that_hosts_could_not_see_are_refused(tmp_path):
    refuse_hidden([tmp_path, Path("/opt/mlflow")])
    with pytest.raises(InputError, match=r"/opt/ml/checkpoints lies in /opt/ml.*--isolation loopback"):
        refuse_hidden([tmp_path, Path("/opt/ml/checkpoints")])
