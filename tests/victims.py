"""Jobs that make steps, on simulated hosts, and are there to be broken."""

import contextlib
from pathlib import Path

from tests.support import start, wait_for

FIRST_STEP_S = 300.0
"""Ranks wait up to a minute for a server that starts beside them, and here all share two processors."""


class Victim:
    """A job that makes steps."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def text(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def wait_for_steps(self, more=1):
        """Until `more` further step events have been logged."""
        so_far = self.text().count("headrace event=step ")
        wait_for(lambda: self.text().count("headrace event=step ") >= so_far + more, f"{more} more steps", FIRST_STEP_S)


@contextlib.contextmanager
def victims(tmp_path: Path):
    """A function that starts a job with these flags, and returns once it makes steps; all end with the context."""
    running = []

    def begin(*flags, stepping=True):
        running.append(Victim(*start(tmp_path, "--isolation=namespaces", *flags)))
        if stepping:
            running[-1].wait_for_steps()
        return running[-1]

    try:
        yield begin
    finally:
        for job in running:
            if job.process.poll() is None:
                job.process.kill()
                job.process.communicate()
