"""A steadily training job, and the means to break it."""

import shutil

import pytest

from tests.faults.breakage import HUNGRY, LOST_TRANSFER, SILENT, STEADY
from tests.support import copy_source, namespaces_allowed, start, wait_for

if not namespaces_allowed():
    collect_ignore_glob = ["test_*.py"]


class Victim:
    """A job that makes steps."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def text(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def wait_for_steps(self, more=1):
        """Until `more` further step events have been logged."""
        so_far = self.text().count("headrace event=step ")
        wait_for(lambda: self.text().count("headrace event=step ") >= so_far + more, f"{more} more steps", 60)


@pytest.fixture
def victim(tmp_path):
    """Starts the steady job with further flags and returns once it makes steps."""
    source = copy_source(tmp_path / "source", STEADY, SILENT, HUNGRY)
    running = []

    def begin(*flags, stepping=True, script="steady.py", lost_transfer=None):
        if lost_transfer is not None:
            shutil.copy(LOST_TRANSFER, source / "train_data.py")
        if lost_transfer:
            (source / "lost").touch()
        common = [f"--source_dir={source}", f"--training_script={script}", "--isolation=namespaces"]
        running.append(Victim(*start(tmp_path, *common, *flags)))
        if stepping:
            running[-1].wait_for_steps()
        return running[-1]

    yield begin
    for job in running:
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()
