"""Fixtures of the guides' tests: a project folder, and the shell of a reader who has headrace installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import JOB_TIMEOUT_S, processes_of, wait_for


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def shell(project):
    """Function that runs lines with bash in the project folder, and returns their output.

    No line may fail, and no job may leave a process behind.
    """

    def run(*lines, errors=subprocess.STDOUT):
        environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", "\n".join(lines)],
            cwd=project,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=JOB_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + (done.stderr or ""))[-4000:]
        for run_folder in (project / "runs").glob("*"):
            # A notebook's job may have the same name at the same time.
            wait_for(lambda name=run_folder.name: not processes_of(name), "the end of a job's processes")
        return done.stdout

    return run
