"""Training jobs on simulated hosts, for tests that break them."""

import contextlib
from pathlib import Path

from tests.support import start, wait_for

FIRST_STEP_S = 300.0
"""Limit in seconds on waits for steps. The limit is high, because ranks may wait a minute for a server, and because all
processes share two processors."""


class Victim:
    """A running job: its process and its folder."""

    def __init__(self, process, folder):
        self.process, self.folder = process, folder

    def text(self):
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def wait_for_steps(self, more=1):
        """Wait until `more` further step events are in the logs."""
        so_far = self.text().count("headrace event=step ")
        wait_for(lambda: self.text().count("headrace event=step ") >= so_far + more, f"{more} more steps", FIRST_STEP_S)


@contextlib.contextmanager
def victims(tmp_path: Path):
    """Yield a function that starts a job and returns once it makes steps; kill all jobs in the end."""
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
