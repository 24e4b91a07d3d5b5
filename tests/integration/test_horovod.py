"""Horovod works with this TensorFlow and Keras 3, on real ranks."""

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from headrace.host.mpi.mpirun import find_program

from tests.integration.service import service
from tests.support import JOB_TIMEOUT_S

CODE = Path(__file__).parents[2] / "code"
RANKS = Path(__file__).parent / "ranks"


def mpirun(script, tmp_path, *argv, ranks=2):
    # As in the launcher, a rank that waits yields its processor to others.
    command = [find_program("mpirun"), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
    command += ["--mca", "mpi_yield_when_idle", "1", "--mca", "orte_tmpdir_base", str(tmp_path)]
    return subprocess.run(
        [*command, sys.executable, str(RANKS / script), *argv],
        env=os.environ | {"PYTHONPATH": str(CODE), "TF_CPP_MIN_LOG_LEVEL": "3", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=JOB_TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize(
    "scripts",
    [
        ("horovod_keras.py",),
        ("loops.py",),
        ("resume.py",),
        ("own_loop.py", "embeddings.py"),
        # The first script sets up devices, which is possible once in a process.
        ("strategies.py", "sync_batch_norm.py", "checkpoint.py"),
    ],
    ids=" ".join,
)
def test_promises_hold_on_two_ranks(scripts, tmp_path):
    result = mpirun("one_after_another.py", tmp_path, str(tmp_path), *scripts)
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 2 * len(scripts)


def test_streams_with_an_end_end_for_all_ranks_at_once(tmp_path):
    result = mpirun("ends.py", tmp_path, ranks=3)
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 3


def test_ranks_share_a_stream_or_have_streams_of_their_own(tmp_path):
    with service(tmp_path / "service", workers=2) as running:
        result = mpirun("streams.py", tmp_path, running.address)
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_have_steps_per_epoch_though_a_stream_ends_within_one(workers, tmp_path):
    with service(tmp_path / "service", workers) if workers else nullcontext() as running:
        result = mpirun("steps_of_an_epoch.py", tmp_path, *([running.address] if running else []))
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 2
