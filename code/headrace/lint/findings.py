"""What a rule finds, what it looks at, and when a finding is worth telling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from headrace.lint.pipeline import PASSING, Pipeline, Stage

COSTLY = re.compile(
    r"Decode|Resize|Conv|Pool|ImageProjective|Adjust|HSV|ReadFile|FFT|MatMul|Spectrogram|CropAndResize|ScaleAndTranslate"
)
"""Operations that are worth a core of their own."""
BETWEEN = (*PASSING, "Cache")


@dataclass(frozen=True)
class Finding:
    """What costs, and its fix."""

    rule: str
    where: str
    """`file:line: transformation`."""
    cost: str
    gain: float | None
    """How many times better it becomes; None: that depends on the data and the host."""
    gain_of: str
    """What becomes better."""
    is_estimate: bool
    """The gain was measured once, with other data; else it follows from the pipeline."""
    fix: str


@dataclass(frozen=True)
class Subject:
    """What the rules look at."""

    pipeline: Pipeline
    """Up to `data.distribute`."""
    distributed_at: str
    """Where the script calls that."""
    trainer: tuple[Stage, ...] | None
    """What the trainer adds after it; None where the script did not come to train on it."""
    sharding: str = "dynamic"


def by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """What is refused first, then the largest gain; those whose gain is not known last."""
    return sorted(findings, key=lambda finding: (finding.rule != "refused", -(finding.gain or 0.0)))


def where(stage: Stage) -> str:
    name = {"Map": "map", "ParallelMap": "map"}.get(stage.kind, stage.kind)
    return f"{stage.where}: {name.lower()}({stage.function_name})"


def size_text(count: float) -> str:
    return next(
        f"{count / unit:.3g} {name}"
        for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
        if count >= unit or unit == 1
    )


def only_regroups(stage: Stage) -> bool:
    """Whether a function only renames and regroups."""
    return stage.ops <= {"Placeholder", "Identity", "NoOp", "Const"}


def is_fixed(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
