"""What all lint rules share: the pipeline that they examine, their findings, and small functions."""

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
"""Pattern of the names of slow operations, which are worth running on several cores."""
BETWEEN = (*PASSING, "Cache")


@dataclass(frozen=True)
class Finding:
    """Something that costs time, memory or bytes, and its fix."""

    rule: str
    where: str
    """Place in the script: `file:line: transformation`."""
    cost: str
    gain: float | None
    """Factor of the gain: 4 in `4× fewer bytes on the wire`. None if no factor is known."""
    gain_of: str
    """What the user gains, without the factor: `fewer bytes on the wire` in `4× fewer bytes on the wire`."""
    is_estimate: bool
    """True if the gain was measured once, with other data; False if it follows from the pipeline."""
    fix: str


@dataclass(frozen=True)
class Subject:
    """The pipeline that the rules examine, with the places where the script uses it."""

    pipeline: Pipeline
    """Transformations up to `data.distribute`."""
    distributed_at: str
    """Where the script calls `data.distribute`: `file:line: distribute()`."""
    trainer: tuple[Stage, ...] | None
    """Transformations that the trainer adds after `data.distribute`; None if the script did not reach its training."""
    sharding: str = "dynamic"


def by_gain(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings sorted: first what `data.distribute` refuses, then the largest gains, then unknown gains."""
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
    """Return whether a stage's function only renames and regroups the components of an element."""
    return stage.ops <= {"Placeholder", "Identity", "NoOp", "Const"}


def is_fixed(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()
