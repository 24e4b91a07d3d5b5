"""Rules on the order of transformations and on what runs beside what."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.lint.findings import BETWEEN, COSTLY, WORTH_GAIN, WORTH_SHARE, Finding, Subject, only_regroups, where
from headrace.lint.pipeline import BATCHES, MAPS, Stage, batch_size, static
from headrace.tensorflow.compat import argument_of
from headrace.tensorflow.sharding.refusals import PYTHON_OPS

WORTH_CALL_S = 100e-6
"""Processor seconds of a function for one element, from which a thread of its own pays: calling any function takes 15
to 35 µs on the machine that this was measured on, and handing the element over as much again."""


def shuffle_after_batch(subject: Subject) -> Iterator[Finding]:
    """A shuffle that moves whole batches."""
    for stage in subject.pipeline.stages:
        above = list(_unchanged(stage)) if stage.kind == "Shuffle" else []
        batches = [place for place, each in enumerate(above) if each.kind in BATCHES]
        if not batches or any(each.kind == "Shuffle" for each in above[batches[0] :]):
            continue
        size, buffer = batch_size(above[batches[0]]), static(argument_of(stage.dataset, "buffer_size"))
        cost = f"the same {size} elements always come together, and its buffer holds {buffer} batches"
        fix = f".shuffle({buffer}).batch({size}): shuffle before batch"
        yield Finding("shuffle-after-batch", where(stage), cost, float(max(size, 1)), "less memory, this buffer",
                      True, fix)  # fmt: skip


def no_prefetch(subject: Subject) -> Iterator[Finding]:
    """A trainer that asks for its next batch when it needs it."""
    if subject.trainer is None or any(stage.kind == "Prefetch" for stage in subject.trainer):
        return
    place = where(subject.trainer[-1]) if subject.trainer else subject.distributed_at
    cost = "nothing is fetched while a step runs: each step first waits for its batch"
    if subject.meter and subject.meter.batch_s:
        cost += f" (made in {subject.meter.batch_s * 1000:.3g} ms of one core, in local mode)"
    yield Finding("no-prefetch", place, cost, 2.0, "shorter steps, at most", False,
                  "data.distribute(…).prefetch(tf.data.AUTOTUNE), as the last transformation")  # fmt: skip


def sequential_map(subject: Subject) -> Iterator[Finding]:
    """Maps that keep a data host at a few cores."""
    meter, cores = subject.meter, subject.cores
    for stage in subject.pipeline.stages:
        # Python runs one call at a time anyway.
        if stage.kind != "Map" or only_regroups(stage) or stage.ops & set(PYTHON_OPS):
            continue
        share = meter.share(stage) if meter else None
        fix = f".map({stage.in_code}, num_parallel_calls=tf.data.AUTOTUNE)"
        if meter is None or share is None:
            if any(COSTLY.search(op) for op in stage.ops):
                yield Finding("sequential-map", where(stage), "one call at a time, on one core", None,
                              "not measured", False, fix)  # fmt: skip
        elif share >= WORTH_SHARE and share * cores >= WORTH_GAIN and (meter.cost_of(stage) or 0) >= WORTH_CALL_S:
            cost = (
                f"one call at a time, {share:.0%} of the pipeline's processor time: "
                f"of {cores} cores {1 / share:.1f} can be busy at most"
            )
            yield Finding("sequential-map", where(stage), cost, share * cores, "faster, the whole pipeline, at most",
                          True, fix)  # fmt: skip


def sequential_interleave(subject: Subject) -> Iterator[Finding]:
    """Files that are read one after the other."""
    for stage in subject.pipeline.stages:
        if stage.kind == "Interleave" and any(op.endswith(("RecordDataset", "LineDataset")) for op in stage.ops):
            files = static(argument_of(stage.dataset, "cycle_length"))
            files = min(files, subject.cores) if files > 0 else subject.cores
            there = int(stage.inputs[0].dataset.cardinality())
            files = min(files, there) if there > 0 else files
            if files > 1:
                yield Finding("sequential-interleave", where(stage), f"one of {files} open files is read at a time",
                              float(files), "faster reading, at most, where storage is slow", False,
                              ".interleave(…, num_parallel_calls=tf.data.AUTOTUNE)")  # fmt: skip


def _unchanged(stage: Stage) -> Iterator[Stage]:
    """What is before a stage, as long as elements stay what they are."""
    while len(stage.inputs) == 1 and stage.inputs[0].kind in (*BETWEEN, *MAPS, *BATCHES):
        stage = stage.inputs[0]
        yield stage
