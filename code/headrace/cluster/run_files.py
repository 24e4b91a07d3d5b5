"""Paths of a job's files and folders, on a host and in the folder of a run on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import InputError

SUMMARY = "summary.json"
"""The leader's summary of the run: outcome, root cause, figures."""
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"
PREFLIGHT_REPORT = "preflight.json"
TRAINER_REPORT = "trainer.json"
"""Rank 0's part of the summary. The leader's launcher takes it into the summary and removes the file."""
ROOT_CAUSE = "root_cause.json"
"""The root cause as one host sees it. If hosts differ, the root cause in the leader's summary is right."""
STOP_REQUEST = "stop"
"""The file in the signal folder that asks rank 0 for a checkpoint now."""
ARRAYS_FOLDER = "arrays"
"""The folder of array files that workers read. It lies in the work folder, which is also the ranks' TMPDIR."""
WORK_DIR_VARIABLE = "HEADRACE_WORK_DIR"
"""Environment variable with the folder for a host's temporary files. If unset, the files go below the base folder."""
REPORT, PLOTS = "report.html", "plots"
"""The output of `headrace report`, in the run's folder."""
RESULTS = (SUMMARY, METRICS, TENSORBOARD, PREFLIGHT_REPORT)
"""Results for users. The leader writes them to its output folder; after the job they go to the run's folder."""


def as_given(text: str) -> Path:
    """Return a user's path or file:// address as a path. Expand ~ too: shells leave ~ alone in --flag=~/folder."""
    return Path(os.path.expanduser(text.removeprefix("file://")))


@dataclass(frozen=True)
class HostPaths:
    """A host's folders below a base folder (`/opt/ml` on SageMaker), in SageMaker's layout."""

    base_dir: Path
    own_work_dir: str = ""
    """Folder for temporary files on the host's own disk, if the base folder is on a shared file system; else empty."""

    @property
    def config_dir(self) -> Path:
        return self.base_dir / "input" / "config"

    @property
    def resource_config(self) -> Path:
        return self.config_dir / "resourceconfig.json"

    @property
    def hyperparameters(self) -> Path:
        return self.config_dir / "hyperparameters.json"

    @property
    def channel_dir(self) -> Path:
        """The folder with one subfolder for each channel."""
        return self.base_dir / "input" / "data"

    @property
    def code_dir(self) -> Path:
        return self.base_dir / "code"

    @property
    def model_dir(self) -> Path:
        return self.base_dir / "model"

    @property
    def checkpoint_dir(self) -> Path:
        return self.base_dir / CHECKPOINTS

    @property
    def output_dir(self) -> Path:
        return self.base_dir / "output" / "data"

    @property
    def failure(self) -> Path:
        """The file whose first 1,024 bytes SageMaker shows as the job's FailureReason."""
        return self.base_dir / "output" / "failure"

    @property
    def work_dir(self) -> Path:
        """The folder of this run's temporary files, removed when the host ends."""
        return Path(self.own_work_dir or self.base_dir / "headrace")

    @property
    def signal_dir(self) -> Path:
        """The folder in which ranks show progress and find a stop request."""
        return self.work_dir / "signals"


@dataclass(frozen=True)
class RunPaths:
    """A run's folder on this machine: the leader's results, and each host's folder and log."""

    folder: Path

    def make(self) -> None:
        """Make the folder, which reserves the job's name. A .gitignore in it keeps git and later jobs from copying it.

        Raises:
            InputError: it exists already, or cannot be made.
        """
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
            (self.folder / ".gitignore").write_text("*\n")
        except FileExistsError as error:
            raise InputError(f"{self.folder} exists already; delete it, or choose another --job_name") from error
        except OSError as error:
            raise InputError(f"cannot make the folder {self.folder}: {error.strerror}; change --output_dir") from error

    @property
    def summary(self) -> Path:
        return self.folder / SUMMARY

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS

    def host(self, name: str) -> HostPaths:
        return HostPaths(self.folder / name)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; make its folder if that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
