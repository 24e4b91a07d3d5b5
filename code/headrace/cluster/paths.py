"""Where a job's files lie that people read: on a host, and in the folder of a run here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUMMARY = "summary.json"
"""The whole run: outcome, root cause, figures. The leader writes it."""
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"
PREFLIGHT_REPORT = "preflight.json"
TRAINER_REPORT = "trainer.json"
"""Rank 0's part of the summary; the leader's launcher takes it from the output folder."""
ROOT_CAUSE = "root_cause.json"
"""What a host takes for the root cause; the leader's summary has the last word."""
STOP_REQUEST = "stop"
"""In the signal folder: asks rank 0 for a checkpoint, now."""
ARRAYS_FOLDER = "arrays"
"""In the work folder, which is the ranks' folder for temporary files too: arrays that workers read."""
WORK_DIR_VARIABLE = "HEADRACE_WORK_DIR"
"""Where a host's working files go, if not into its base folder."""
REPORT, PLOTS = "report.html", "plots"
"""What `headrace report` makes of a run, in its folder."""
RESULTS = (SUMMARY, METRICS, TENSORBOARD, PREFLIGHT_REPORT)
"""What the leader leaves for people, in its output folder and then in the run's."""


def as_given(text: str) -> Path:
    """A path that a user names: the shell leaves the ~ of --flag=~/folder alone."""
    return Path(os.path.expanduser(text))


@dataclass(frozen=True)
class HostPaths:
    """A host's folders below its base folder, `/opt/ml`, as SageMaker has them."""

    base_dir: Path
    own_work_dir: Path | None = None
    """On a disk of the host itself, where the base folder is shared with other hosts."""

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
        """Has a folder for each channel."""
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
        """SageMaker shows the first 1,024 bytes of this file as the job's FailureReason."""
        return self.base_dir / "output" / "failure"

    @property
    def work_dir(self) -> Path:
        """This run's working files; gone when the host ends."""
        return self.own_work_dir or self.base_dir / "headrace"

    @property
    def signal_dir(self) -> Path:
        """Where ranks show progress and find a stop request."""
        return self.work_dir / "signals"


@dataclass(frozen=True)
class RunPaths:
    """A run's folder on this machine: what the leader left, and each host's own folder and log."""

    folder: Path

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
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
