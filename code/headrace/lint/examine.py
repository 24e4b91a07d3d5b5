"""From the datasets of a script to findings."""

from __future__ import annotations

import tensorflow as tf

from headrace.errors import InputError
from headrace.lint import DATA_HOST_CORES, rules_content, rules_order
from headrace.lint.findings import Finding, Subject, by_gain
from headrace.lint.measure import Meter
from headrace.lint.pipeline import Pipeline, Stage
from headrace.lint.script_run import Captured
from headrace.lint.stages import StageCost, stage_costs
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


def examine(captured: Captured, measured: bool = True, cores: int = DATA_HOST_CORES) -> list[Finding]:
    """All findings on what a script distributes, the largest gain first.

    Raises:
        InputError: measuring runs parts of the pipeline, and one of them fails.
    """
    found: list[Finding] = []
    for wire, distributed, sharding in zip(captured.wires, captured.distributed, captured.shardings, strict=True):
        pipeline = Pipeline(wire, captured.sources)
        place = f"{captured.sources.get(id(distributed), '?')}: distribute()"
        meter = Meter(pipeline) if measured else None
        subject = Subject(pipeline, place, _trainer(captured, distributed), meter, cores, sharding)
        found += _refused(wire, place, sharding)
        try:
            found += [finding for rule in RULES for finding in rule(subject)]
        except tf.errors.OpError as error:
            reason = " ".join(error.message.split())[:300]
            raise InputError(f"{place} gets a dataset that fails: {reason}; --no-measure runs none of it") from error
    return by_gain(found)


def where_time_goes(captured: Captured) -> list[StageCost]:
    """What each stage of what a script distributes costs. Raises `InputError` when one of them fails."""
    try:
        return [cost for wire in captured.wires for cost in stage_costs(Pipeline(wire, captured.sources))]
    except tf.errors.OpError as error:
        reason = " ".join(error.message.split())[:300]
        raise InputError(f"a stage of the pipeline fails: {reason}") from error


def _refused(wire: tf.data.Dataset, place: str, sharding: str) -> list[Finding]:
    """What `data.distribute` would refuse in a job with data hosts, in the same words."""
    try:
        graph = DatasetGraph(wire, place.partition(": ")[0])
        refusals.refuse_python(graph)
        if sharding == "dynamic":
            find_sources(graph)
    except InputError as error:
        cost, _, fix = str(error).partition(". Write ")
        return [Finding("refused", place, cost, None, "it runs at all", True, fix or "as it says")]
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
