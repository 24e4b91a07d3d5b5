"""Whole PyTorch jobs: a source dir with the tests' scripts, and a job that is there to be broken."""

from pathlib import Path

import pytest

from tests.support import (
    namespaces_allowed,
    wait_for,
)

SCRIPTS = Path(__file__).parent / "scripts"


TORCH = "--framework=pytorch"


needs_namespaces = pytest.mark.skipif(not namespaces_allowed(), reason="this machine allows no namespaces")


class Job:
    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def text(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def wait_for_steps(self, more=1):
        so_far = self.text().count("headrace event=step ")
        wait_for(lambda: self.text().count("headrace event=step ") >= so_far + more, f"{more} more steps", 60)
