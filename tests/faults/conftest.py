"""Fixtures that start jobs with a steady pace, for tests that break the jobs."""

import shutil

import pytest

from tests.faults.breakage import HUNGRY, LOST_TRANSFER, SILENT, STEADY, TOYS
from tests.support import copy_source, namespaces_allowed
from tests.victims import victims

if not namespaces_allowed():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def victim(tmp_path):
    """Function that starts a steady TensorFlow job with the given flags, and returns once the job makes steps."""
    source = copy_source(tmp_path / "source", STEADY, SILENT, HUNGRY)

    with victims(tmp_path) as begin:

        def begin_steady(*flags, stepping=True, script="steady.py", lost_transfer=None):
            if lost_transfer is not None:
                shutil.copy(LOST_TRANSFER, source / "train_data.py")
            if lost_transfer:
                (source / "lost").touch()
            return begin(f"--source_dir={source}", f"--training_script={script}", *flags, stepping=stepping)

        yield begin_steady


@pytest.fixture
def toy_victim(tmp_path):
    """Function that starts a steady job without a framework. The job's trainer and servers start in a moment."""
    source = copy_source(tmp_path / "source", *TOYS.glob("*.py"))

    with victims(tmp_path) as begin:

        def begin_steady(*flags, stepping=True):
            return begin(
                f"--source_dir={source}", "--training_script=steady.py", "--batch_size=1", *flags, stepping=stepping
            )

        yield begin_steady
