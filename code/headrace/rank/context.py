"""Environment variables through which the launcher tells a rank where to read data and where to write results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.job.settings import TF_DATA_MODES

_PREFIX = "HEADRACE_"
GRPC = "grpc"
"""Name of tf.data service's own data transfer protocol, which every worker has."""
EMPTY_REPORT: dict[str, Any] = {
    "world_size": 0,
    "global_batch_size": 0,
    "epochs": 0,
    "steps": 0,
    "steps_per_epoch": 0,
    "first_step_s": 0.0,
    "step_time_ms": {"median": 0.0, "mean": 0.0, "p90": 0.0},
    "samples_per_s": 0.0,
    "ideal_step_time_ms": 0.0,
    "ideal_step_time_error_ms": 0.0,
    "ideal_step_from": "",
    "step_parts_ms": {"waiting": 0.0, "copying": None, "computing": 0.0},
    "between_steps_ms": 0.0,
    "input_bound_share": 0.0,
    "rank_cpu_s_per_step": 0.0,
    "compute_cpu_s_per_step": 0.0,
    "sample_bytes": 0.0,
    "train_s": 0.0,
    "final_metrics": {},
}
"""All fields of rank 0's report, with their values before the first step."""


@dataclass(frozen=True)
class TrainerContext:
    """Places where a rank gets its batches and leaves its results."""

    tf_data_mode: str = "local"
    dispatcher: str = ""
    """`host:port` of the tf.data service dispatcher; empty if there is none."""
    feeds: str = ""
    """`host:port,…` of the feed servers that make PyTorch's batches; empty if there are none."""
    job_name: str = "headrace"
    output_dir: Path = Path("output")
    """Folder for metrics, TensorBoard files and the report."""
    checkpoint_dir: Path = Path("checkpoints")
    signal_dir: Path = Path()
    """Folder in which ranks of this host show progress and find a stop request; unset without a launcher."""
    protocol_file: str = ""
    """File to which the launcher writes the name of the chosen data transfer protocol; empty without a launcher."""

    def __post_init__(self) -> None:
        if self.tf_data_mode not in TF_DATA_MODES:
            raise InputError(f"{_PREFIX}TF_DATA_MODE is {self.tf_data_mode!r}; expected one of {TF_DATA_MODES}")
        if self.tf_data_mode == "service" and not (self.dispatcher or self.feeds):
            raise InputError(
                f"{_PREFIX}TF_DATA_MODE is service, but neither {_PREFIX}DISPATCHER nor {_PREFIX}FEEDS is set; set one"
            )

    def environ(self) -> dict[str, str]:
        """Return the variables that `from_environ` reads."""
        return {_PREFIX + each.name.upper(): str(getattr(self, each.name)) for each in fields(self)}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> TrainerContext:
        """Read the launcher's variables. Without a launcher the result is local training in the current folder."""
        given: dict[str, Any] = {}
        for each in fields(cls):
            text = environ.get(_PREFIX + each.name.upper())
            if text:
                given[each.name] = Path(text) if each.name.endswith("_dir") else text
        return cls(**given)
