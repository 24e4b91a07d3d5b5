"""The launcher runs whole jobs with scripts that need only MPI, or not even that."""

import os

import pytest

from tests.support import run_job

HELLO = """
from mpi4py import MPI
print("rank", MPI.COMM_WORLD.rank, "of", MPI.COMM_WORLD.size, flush=True)
"""


def run_script(tmp_path, text, *flags, **popen):
    """Run a job of one host with two ranks, unless the flags say otherwise."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "train_dnn.py").write_text(text)
    return run_job(tmp_path, f"--source_dir={source}", "--no-is_hetero", *flags, **popen)


def test_a_host_without_ssh_and_rsh_trains(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):  # what comes first on PATH takes the place of what comes later
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if entry.name not in ("ssh", "rsh"):
                (programs / entry.name).unlink(missing_ok=True)
                (programs / entry.name).symlink_to(entry.path)
    run = run_script(tmp_path, HELLO, env=os.environ | {"PATH": str(programs)})
    assert run.code == 0, run.output
    assert run.output.count("of 2") == 2


STRICT = """
import argparse, os
parser = argparse.ArgumentParser()
for name in ("learning_rate", "epochs", "batch_size", "steps_per_epoch", "note"):
    parser.add_argument(f"--{name}")
print("parsed", vars(parser.parse_args()), flush=True)
names = ("TF_DATA_MODE", "NUM_OF_DATA_WORKERS", "LOCAL_WORKERS", "LEASE_S", "FRAMEWORK")
print("told", [os.environ["HEADRACE_" + name] for name in names], flush=True)
"""


def test_a_script_that_parses_strictly_gets_what_the_user_gave_and_settings_as_environment(tmp_path):
    run = run_script(
        tmp_path,
        STRICT,
        "--tf_data_mode=service",
        "--num_of_data_workers=2",
        "--preflight",
        "--epochs=3",
        "--batch_size=8",
        "--steps_per_epoch=5",
        "--hyperparameter=learning_rate=1e-3",
        "--hyperparameter=note=lease_s 1",
        "--hyperparameter=lease_s=12.5",
    )
    assert run.code == 0, run.output
    given = {"learning_rate": "1e-3", "epochs": "3", "batch_size": "8", "steps_per_epoch": "5", "note": "lease_s 1"}
    assert run.output.count(f"parsed {given}") == 2
    assert run.output.count("told ['service', '2', 'on', '12.5', 'tensorflow']") == 2


CLICK = """
import click

@click.command()
def main():
    pass

main()
"""


def test_a_usage_error_that_a_parser_has_printed_is_in_the_root_cause_and_the_failure_file(tmp_path):
    pytest.importorskip("click")
    run = run_script(tmp_path, CLICK, "--hyperparameter=momentum=0.9", "--processes_per_host=1")
    assert run.code == 1
    message = "raised SystemExit: 2 (NoSuchOption: No such option '--momentum'.)"
    assert run.summary["root_cause"]["message"] == message
    failure = (run.folder / "algo-1/output/failure").read_text()
    assert failure.startswith("rank0 on algo-1 (pid ") and message in failure.splitlines()[0]


def test_several_hosts_on_loopback_addresses_are_one_mpi_world(tmp_path):
    run = run_script(tmp_path, HELLO, "--isolation=loopback", "--num_of_dnn_instances=2", "--processes_per_host=2")
    assert run.code == 0, run.output
    assert all(f"rank {rank} of 4" in run.output for rank in range(4))


HANGS = "import threading\nthreading.Event().wait()\n"
READS = """
import tensorflow as tf
import headrace.tensorflow.horovod_keras as hvd
from headrace.tensorflow import data
hvd.init()
batches = data.distribute(tf.data.Dataset.range(8).batch(2).repeat())
"""


@pytest.mark.parametrize(
    ("script", "timeout_s", "said"),
    [
        (HANGS, 5, "no rank has read data through headrace, so the script itself hangs"),
        (READS + HANGS, 25, "all ranks waited for data, or the script itself hangs"),
    ],
    ids=["without a dataset", "with one"],
)
def test_a_script_that_hangs_is_said_to_wait_for_data_only_where_it_has_a_dataset(tmp_path, script, timeout_s, said):
    timeouts = [f"--hyperparameter={name}_timeout_s={timeout_s}" for name in ("startup", "stall")]
    run = run_script(tmp_path, script, "--processes_per_host=1", *timeouts)
    assert run.code == 1
    assert said in run.summary["root_cause"]["message"]
