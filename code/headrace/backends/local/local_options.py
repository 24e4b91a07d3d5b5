"""Options of the local backend: processors, isolation, folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import InputError


@dataclass(frozen=True)
class LocalOptions:
    """Options of a run on this machine, validated when they are made."""

    output_dir: Path = Path("runs")
    isolation: str = "auto"
    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Processors by group; other groups run on all processors."""
    checkpoints: str | None = None
    """The folder that all hosts see as /opt/ml/checkpoints; made if missing. None: a separate folder for each host."""
    secret: str = ""

    def __post_init__(self) -> None:
        present = os.sched_getaffinity(0)
        for group, cpus in self.cpus.items():
            if missing := sorted(cpus - present):
                here = ",".join(map(str, sorted(present)))
                raise InputError(f"--cpus {group}: this machine has no processor {missing[0]}; it has {here}")
