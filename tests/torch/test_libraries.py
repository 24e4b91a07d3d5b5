"""Libraries for training with PyTorch work with the loader unchanged; each test uses the real package."""

import re

import pytest

from tests.support import run_job
from tests.torch.jobs import SCRIPTS, TORCH, needs_namespaces

LIBRARIES = ["accelerate", "lightning", "compiled", "datasets", "streaming", "webdataset", "repeated"]


@needs_namespaces
@pytest.mark.parametrize("hosts", [["--num_of_data_instances=1"], ["--no-is_hetero"]], ids=["data hosts", "local"])
def test_libraries_train_on_each_sample_once_an_epoch_wherever_batches_are_made(tmp_path, hosts):
    flags = [TORCH, *hosts, "--processes_per_host=2", f"--source_dir={SCRIPTS}", "--training_script=libraries.py"]
    job = run_job(tmp_path, *flags)
    assert job.code == 0, job.output
    found = re.findall(r"trained with (\w+): each sample once: (\w+), on data hosts: (\w+)", job.output)
    assert found == [(name, "True", str("1" in hosts[0])) for name in LIBRARIES]
