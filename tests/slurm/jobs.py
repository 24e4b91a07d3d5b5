"""Start jobs on the simulated cluster: whole jobs with `headrace submit`, and toy jobs that tests break."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from headrace.backends.slurm.sbatch import job_state
from headrace.errors import SetupError
from headrace.events import parse_event

from tests.slurm.cluster import START_TIMEOUT_S, Cluster, wait_until
from tests.support import ROOT, copy_source

TOYS = ROOT / "tests" / "integration" / "toy_service"
STEADY = Path(__file__).parent / "scripts" / "steady.py"
PLACES = ["--dnn_partition=gpu", "--dnn_cpus=2", "--data_partition=cpu", "--data_cpus=2", "--time=10"]
FOR_EVER = "--hyperparameter=steps=100000"


def command(cluster: Cluster, *flags: str, python: str | Path = sys.executable) -> subprocess.Popen[str]:
    """Start `headrace submit --to slurm`, and return its process."""
    return subprocess.Popen(
        [str(python), "-m", "headrace", "submit", "--to", "slurm", *flags],
        env=os.environ | cluster.environ | {"PYTHONPATH": str(ROOT / "code")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def state_of(job_id: str) -> str:
    """Return a job's state. Ask again if slurmctld does not answer: other work may pause slurmctld."""
    for _ in range(5):
        with contextlib.suppress(SetupError):
            return job_state(job_id)
    return job_state(job_id)


class Job:
    """A toy job. sbatch submits the script that `--dry_run` prints. The job's launcher uses the toy data service."""

    def __init__(self, cluster: Cluster, tmp_path: Path, name: str, *flags: str) -> None:
        self.cluster, self.folder = cluster, tmp_path / name
        source = tmp_path / "source"
        if not source.exists():
            source.mkdir()
            shutil.copy(STEADY, source)
            shutil.copy(TOYS / "read_toys.py", source)
        shown = command(
            cluster,
            "--dry_run",
            f"--source_dir={source}",
            "--training_script=steady.py",
            f"--output_dir={tmp_path}",
            f"--job_name={name}",
            "--hyperparameter=startup_timeout_s=60",
            *PLACES,
            *flags,
        )
        self.script, _ = shown.communicate(timeout=START_TIMEOUT_S)
        assert shown.returncode == 0, self.script
        self.script = self.script[: self.script.index("headrace: not submitted")]
        copy_source(self.folder / "code", STEADY)
        for file in TOYS.glob("*.py"):
            shutil.copy(file, self.folder / "code")
        (self.folder / "checkpoints").mkdir()
        (self.folder / "secret").touch(mode=0o600)
        (self.folder / "secret").write_text(secrets.token_hex(32))
        (self.folder / "job.sbatch").write_text(self.script)
        self.id = cluster.slurm("sbatch", "--parsable", str(self.folder / "job.sbatch")).strip()

    def text(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def events(self, name: str):
        return [event for event in map(parse_event, self.text().splitlines()) if event and event.name == name]

    @property
    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())

    def wait_for_steps(self, more: int = 1) -> None:
        so_far = len(self.events("step"))
        wait_until(lambda: len(self.events("step")) >= so_far + more, f"{more} more steps of {self.text()[-3000:]}")

    def wait_for_end(self) -> str:
        """Wait until the job has left the queue and all nodes, and return its last state."""
        wait_until(lambda: not any(line.startswith(f"{self.id} ") for line in self.cluster.jobs()), "end")
        wait_until(lambda: state_of(self.id) != "COMPLETING", "end on all nodes")
        return state_of(self.id)

    def cancel(self) -> None:
        if self.cluster.jobs():
            self.cluster.slurm("scancel", self.id)
