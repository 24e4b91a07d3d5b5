"""A steadily training job, and the means to break it."""

import shutil

import pytest

from tests.faults.breakage import HUNGRY, LOST_TRANSFER, SILENT, STEADY
from tests.support import copy_source, namespaces_allowed
from tests.victims import victims

if not namespaces_allowed():
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def victim(tmp_path):
    """Starts the steady job with further flags and returns once it makes steps."""
    source = copy_source(tmp_path / "source", STEADY, SILENT, HUNGRY)

    with victims(tmp_path) as begin:

        def begin_steady(*flags, stepping=True, script="steady.py", lost_transfer=None):
            if lost_transfer is not None:
                shutil.copy(LOST_TRANSFER, source / "train_data.py")
            if lost_transfer:
                (source / "lost").touch()
            return begin(f"--source_dir={source}", f"--training_script={script}", *flags, stepping=stepping)

        yield begin_steady
