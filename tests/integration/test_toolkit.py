"""The simulated hosts' environment and arguments against the toolkit that SageMaker really runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from headrace.job import Channel, InstanceGroup, JobSpec
from headrace.local.opt_ml import script_arguments, toolkit_environ, write_host_folder

CODE = Path(__file__).parents[2] / "code"
READ = """
import json, os
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
from sagemaker_training import environment
env = environment.Environment()
print(json.dumps({"environ": env.to_env_vars(), "arguments": env.to_cmd_args()}))
"""
OURS_ALONE = {"SAGEMAKER_BASE_DIR", "TRAINING_JOB_NAME", "TRAINING_JOB_ARN", "SM_NUM_GPUS", "SM_IS_HETERO"}


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
        name: (value, theirs["environ"].get(name))
        for name, value in ours.items()
        if name not in OURS_ALONE and theirs["environ"].get(name) != value
    }
    assert different == {}
