"""The job spec refuses what cannot run, in one clear line, and gives both backends the same hosts."""

from pathlib import Path

import pytest
from headrace.errors import InputError
from headrace.job.spec import Channel, InstanceGroup, JobSpec

CODE = Path(__file__).parents[2] / "code"
DATA = InstanceGroup("data_group", "ml.c5.18xlarge", 2)
DNN = InstanceGroup("dnn_group", "ml.p4d.24xlarge", 1)


def spec(**changes):
    values = {
        "job_name": "job-1",
        "groups": (DATA, DNN),
        "tf_data_mode": "service",
        "processes_per_host": 2,
        "source_dir": CODE,
    }
    return JobSpec(**(values | changes))


def test_hosts_are_numbered_with_the_data_group_first():
    hosts = spec(groups=(DNN, DATA)).hosts()
    assert {name: group.name for name, group in hosts.items()} == {
        "algo-1": "data_group",
        "algo-2": "data_group",
        "algo-3": "dnn_group",
    }


def test_all_hyperparameters_reach_the_script_beside_the_launchers_own():
    given = spec(hyperparameters={"epochs": "3"}).all_hyperparameters()
    assert given["epochs"] == "3"
    assert given["tf_data_mode"] == "service"
    assert given["training_script"] == "train_dnn.py"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job_name": "no spaces"}, "job name 'no spaces'"),
        ({"job_name": "x" * 64}, "1 to 63"),
        ({"tf_data_mode": "remote"}, "expected one of service, local"),
        ({"tf_data_mode": "local"}, "leaves the data group idle"),
        ({"num_of_data_workers": 0}, "needs num_of_data_workers 1 or more"),
        ({"num_of_data_workers": -1}, "expected 0 to 999"),
        ({"processes_per_host": 0}, "--processes_per_host is 0"),
        ({"hyperparameters": {"a b": "1"}}, "hyperparameter name 'a b'"),
        ({"hyperparameters": {"delimiter": ":"}}, "'delimiter' is ':', which separates programs"),
        ({"hyperparameters": {"sagemaker_program": "x.py"}}, "SageMaker reserves sagemaker_…; rename it"),
        ({"channels": (Channel("x", "/d"), Channel("x", "/e"))}, "given twice"),
        ({"channels": (Channel("x", "/d", ("gpus",)),)}, "names group 'gpus'"),
        ({"source_dir": Path("/nowhere")}, "no such folder"),
        ({"training_script": "nothing.py"}, "holds no nothing.py"),
    ],
)
def test_what_cannot_run_is_refused(changes, said):
    with pytest.raises(InputError) as error:
        spec(**changes)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "uri", "groups"),
    [
        ("t=s3://bucket/a", "s3://bucket/a", ()),
        ("t=s3://bucket/a@data_group", "s3://bucket/a", ("data_group",)),
        ("t=/d@data_group,dnn_group", "/d", ("data_group", "dnn_group")),
        ("t=/home/me@work/data", "/home/me@work/data", ()),
    ],
)
def test_channels_are_read_with_and_without_groups(text, uri, groups):
    assert Channel.parse(text) == Channel("t", uri, groups)


@pytest.mark.parametrize("text", ["training", "tr aining=/d", "training="])
def test_malformed_channels_are_refused(text):
    with pytest.raises(InputError):
        Channel.parse(text)


def test_a_group_without_hosts_is_refused():
    with pytest.raises(InputError):
        InstanceGroup("dnn_group", "ml.c5.large", 0)
