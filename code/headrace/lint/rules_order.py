"""Rules on the order of transformations and on what runs in parallel."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.lint.findings import BETWEEN, COSTLY, Finding, Subject, only_regroups, where
from headrace.lint.pipeline import BATCHES, MAPS, Stage, batch_size, static
from headrace.tensorflow.compat import argument_of
from headrace.tensorflow.sharding.refusals import PYTHON_OPS


def shuffle_after_batch(subject: Subject) -> Iterator[Finding]:
    """Find shuffles that move whole batches."""
    for stage in subject.pipeline.stages:
        above = list(_unchanged(stage)) if stage.kind == "Shuffle" else []
        batches = [place for place, each in enumerate(above) if each.kind in BATCHES]
        if not batches or any(each.kind == "Shuffle" for each in above[batches[0] :]):
            continue
        size, buffer = batch_size(above[batches[0]]), static(argument_of(stage.dataset, "buffer_size"))
        cost = f"the same {size} elements always share a batch, and the shuffle's buffer holds {buffer} batches"
        gain, fix = float(max(size, 1)), f".shuffle({buffer}).batch({size}): shuffle before batch"
        yield Finding("shuffle-after-batch", where(stage), cost, gain, "less memory for this buffer", False, fix)


def no_prefetch(subject: Subject) -> Iterator[Finding]:
    """Find trainers that request a batch only when a step needs it."""
    if subject.trainer is None or any(stage.kind == "Prefetch" for stage in subject.trainer):
        return
    place = where(subject.trainer[-1]) if subject.trainer else subject.distributed_at
    cost = "nothing is fetched while a step runs: each step first waits for its batch"
    fix = "data.distribute(…).prefetch(tf.data.AUTOTUNE), as the last transformation"
    yield Finding("no-prefetch", place, cost, 2.0, "shorter steps at best", True, fix)


def sequential_map(subject: Subject) -> Iterator[Finding]:
    """Find costly maps that use only one core of a data host."""
    for stage in subject.pipeline.stages:
        # Python functions run one call at a time, even in a parallel map.
        if stage.kind != "Map" or only_regroups(stage) or stage.ops & set(PYTHON_OPS):
            continue
        if costly := sorted({each[0] for op in stage.ops if (each := COSTLY.search(op))}):
            cost = f"slow operations ({', '.join(costly)}) run one call at a time, on one core"
            gain_of = "as many calls at once as a data host has cores"
            fix = f".map({stage.in_code}, num_parallel_calls=tf.data.AUTOTUNE)"
            yield Finding("sequential-map", where(stage), cost, None, gain_of, False, fix)


def sequential_interleave(subject: Subject) -> Iterator[Finding]:
    """Find files that are read one after the other."""
    for stage in subject.pipeline.stages:
        if stage.kind == "Interleave" and any(op.endswith(("RecordDataset", "LineDataset")) for op in stage.ops):
            open_at_once = static(argument_of(stage.dataset, "cycle_length"))
            known = [each for each in (open_at_once, int(stage.inputs[0].dataset.cardinality())) if each > 0]
            files = min(known) if known else 0
            if files != 1:
                cost = f"{files or 'several'} files are open, but only one of them is read at a time"
                gain, gain_of = float(files) or None, "faster reads from slow storage, at best"
                fix = ".interleave(…, num_parallel_calls=tf.data.AUTOTUNE)"
                yield Finding("sequential-interleave", where(stage), cost, gain, gain_of, True, fix)


def _unchanged(stage: Stage) -> Iterator[Stage]:
    """Yield the stages before `stage`, nearest first, as long as they only map, batch or pass on elements."""
    while len(stage.inputs) == 1 and stage.inputs[0].kind in (*BETWEEN, *MAPS, *BATCHES):
        stage = stage.inputs[0]
        yield stage
