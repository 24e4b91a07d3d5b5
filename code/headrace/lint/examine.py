"""Apply all rules to the datasets of a script."""

from __future__ import annotations

import tensorflow as tf

from headrace.errors import InputError
from headrace.lint import rules_content, rules_order
from headrace.lint.findings import Finding, Subject, by_gain
from headrace.lint.pipeline import Pipeline, Stage
from headrace.lint.script_run import Captured
from headrace.tensorflow.sharding import refusals
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph
from headrace.tensorflow.sharding.split_points import find_sources

RULES = (
    rules_content.wide_wire,
    rules_content.map_before_batch,
    rules_content.no_cache,
    rules_content.decode_then_crop,
    rules_order.shuffle_after_batch,
    rules_order.no_prefetch,
    rules_order.sequential_map,
    rules_order.sequential_interleave,
)


def examine(captured: Captured) -> list[Finding]:
    """Return all findings on the datasets that a script distributes, the largest gain first. No dataset is run."""
    found: list[Finding] = []
    for wire, distributed, sharding in zip(captured.wires, captured.distributed, captured.shardings, strict=True):
        pipeline = Pipeline(wire, captured.sources)
        place = f"{captured.sources.get(id(distributed), '?')}: distribute()"
        subject = Subject(pipeline, place, _trainer(captured, distributed), sharding)
        found += _refused(wire, place, sharding)
        found += [finding for rule in RULES for finding in rule(subject)]
    return by_gain(found)


def _refused(wire: tf.data.Dataset, place: str, sharding: str) -> list[Finding]:
    """Return [finding] if `data.distribute` would raise an error in a job with data hosts, else []."""
    try:
        graph = DatasetGraph(wire, place.partition(": ")[0])
        refusals.refuse_python(graph)
        if sharding == "dynamic":
            find_sources(graph)
    except InputError as error:
        cost, _, fix = str(error).partition(". Write ")
        return [Finding("refused", place, cost, None, "the job can start", False, fix or "do what the cost says")]
    return []


def _trainer(captured: Captured, distributed: object) -> tuple[Stage, ...] | None:
    if captured.trained is None:
        return None
    stage, found = Pipeline(captured.trained, captured.sources).end, []
    while stage.dataset is not distributed:
        found.append(stage)
        if len(stage.inputs) != 1:
            return None
        stage = stage.inputs[0]
    return tuple(reversed(found))
