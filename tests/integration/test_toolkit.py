"""Simulated hosts have the environment and arguments that SageMaker's real toolkit makes."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from headrace.backends.local.opt_ml import script_arguments, toolkit_environ, write_host_folder
from headrace.backends.sagemaker.cloud_options import CloudOptions
from headrace.backends.sagemaker.request import build_request
from headrace.job.settings import HYPERPARAMETERS, parse_settings
from headrace.job.spec import Channel, InstanceGroup, JobSpec
from hypothesis import given
from hypothesis import strategies as st

values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
CODE = Path(__file__).parents[2] / "code"
READ = """
import json, os
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
from sagemaker_training import environment
env = environment.Environment()
print(json.dumps({"environ": env.to_env_vars(), "arguments": env.to_cmd_args()}))
"""
OURS_ALONE = {"SAGEMAKER_BASE_DIR", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN"}
THEIRS_ALONE = {"SM_TRAINING_ENV"}
OF_THE_BASE_FOLDER = {"SM_MODULE_DIR"}
"""Variables that the toolkit always sets to /opt/ml/code. headrace sets them to the folder of the host's code."""


def test_environment_and_arguments_are_the_toolkits(tmp_path):
    groups = (InstanceGroup("data_group", "ml.c5.xlarge", 2), InstanceGroup("dnn_group", "ml.g5.xlarge", 1))
    channels = (Channel("training", str(tmp_path)),)
    job = JobSpec("job", groups, "service", 2, 1, {"model": "small_cnn", "x": "1", "flag": ""}, channels, CODE)
    folder = tmp_path / "algo-2"
    write_host_folder(folder, job, "algo-2")
    result = subprocess.run(
        [sys.executable, "-c", READ],
        env=os.environ | {"SAGEMAKER_BASE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(result.stdout.splitlines()[-1])
    ours = toolkit_environ(job, "algo-2", folder)
    assert theirs["arguments"] == script_arguments(job)
    different = {
        name: (ours.get(name), theirs["environ"].get(name))
        for name in (ours.keys() | theirs["environ"].keys()) - OURS_ALONE - THEIRS_ALONE - OF_THE_BASE_FOLDER
        if ours.get(name) != theirs["environ"].get(name)
    }
    assert different == {}
    assert toolkit_environ(job, "algo-2", Path("/opt/ml"))["SM_MODULE_DIR"] == theirs["environ"]["SM_MODULE_DIR"]


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z_][A-Za-z0-9_\-]{0,20}", fullmatch=True).filter(
            lambda name: name not in HYPERPARAMETERS
        ),
        values | st.sampled_from(["None", "true", "[1, 2]", '{"a": null}', "--lease_s", "-1", ""]),
    )
)
def test_hyperparameters_mean_the_same_to_the_toolkit(given_ones):
    from sagemaker_training import environment, mapping

    groups = (InstanceGroup("homogeneousCluster", "ml.g5.xlarge", 1),)
    job = JobSpec("job", groups, "local", 2, 1, given_ones, (), CODE)
    options = CloudOptions("arn:aws:iam::123456789012:role/headrace", "us-east-1", "image", "s3://bucket/headrace")
    request = build_request(job, options, "secret")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(request["HyperParameters"], file)
        file.flush()
        with mock.patch.object(environment, "hyperparameters_file_dir", file.name):
            read = environment.read_hyperparameters()
    arguments = mapping.to_cmd_args(mapping.split_by_criteria(read, prefix="sagemaker_").excluded)
    assert arguments == script_arguments(job)
    assert parse_settings(arguments)["processes_per_host"] == 2
