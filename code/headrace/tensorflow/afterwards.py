"""What a script does to a dataset after `data.distribute` that each rank would do alone: refused, or told.

Ranks take whatever batches come next, others in each pass, and as many as all others do. What looks at where a batch
stands, or changes how many there are, belongs before.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import origin
from headrace.tensorflow.sharding.dataset_graph import INFINITE

_results: weakref.WeakSet[Any] = weakref.WeakSet()
"""What `data.distribute` and `data.split_by_rank` have returned."""
_shares: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those of which each rank has a part."""
_streams: weakref.WeakSet[Any] = weakref.WeakSet()
"""Of these, those of `data.distribute`."""
_ever_shared = False
"""Whether there was one of the last kind."""
_SHARD = (
    "takes a part of what is this rank's part already, and no rank gets the rest: leave it out; or shard before, and "
    "data.distribute(…, shared=False)"
)
_SKIP = (
    "leaves out other batches on each rank and in each pass, so that what is held out would be trained on: take and "
    "skip before data.distribute, and distribute each; to go on after a restart, data.Shards"
)
_MIX = (
    "draws otherwise on each rank, so that ranks would wait for each other at the ends: mix before data.distribute, or "
    "give it a seed"
)
_UNEVEN = (
    "may give ranks unequal numbers of steps, and then they wait for each other: do it before, or .repeat() before and "
    "say steps_per_epoch"
)
_KEEPS = (
    "keeps what this rank got in its first pass for all others, with what came again there so that all ranks end "
    "alike: cache before data.distribute"
)
_PAIRS = (
    "pairs whatever comes next of each on this rank, and ends with the shorter one there, so that a pass may leave out "
    "elements of both: zip before, where they belong together, or repeat() the smaller one before data.distribute"
)


def given_out(result: tf.data.Dataset, *, stream: bool, shared: bool = True) -> tf.data.Dataset:
    """What a rank trains on. `stream`: of `data.distribute`; `shared`: among the ranks."""
    global _ever_shared
    _results.add(result)
    if shared:
        _shares.add(result)
    if stream and shared:
        _ever_shared = True
        _streams.add(result)
    return result


def is_of_a_result(dataset: Any) -> bool:
    """Whether it is made from what was given out."""
    return _is_of(dataset, _results)


def is_shared() -> bool:
    """Whether the ranks share a stream, or have shared one."""
    return _ever_shared


def look_after() -> None:
    """From now on what a script makes of a result is looked at. Called once, by `headrace.tensorflow.data`."""
    origin.note_lines()
    origin.listeners.append(_look)


def _look(made: Any) -> None:
    """Raises `InputError` for what would lose or repeat samples, or never end."""
    if not tf.executing_eagerly():  # a loop within a tf.function
        return
    look = _LOOKS.get(type(made).__name__)
    if look and (problem := look(made)):
        raise InputError(f"{origin.line_of(made)}: {problem}")


def _of_a_shard(made: Any) -> str:
    return f"shard, after data.distribute or data.split_by_rank, {_SHARD}" if _is_of(made, _shares) else ""


def _of_a_skip(made: Any) -> str:
    return f"skip, after data.distribute, {_SKIP}" if _is_of(made, _streams) else ""


def _of_a_mixture(made: Any) -> str:
    selector, *mixed = made._inputs()
    finite = sum(_is_of(each, _streams) and not _is_endless(each) for each in mixed)
    what = f"sample_from_datasets (or rejection_resample), after data.distribute, {_MIX}"
    return what if finite > 1 and _draws(selector) else ""


def _of_other_steps(made: Any) -> str:
    if _is_of(made, _streams) and not all(map(_is_endless, made._inputs())):
        what = type(made).__name__.strip("_").removesuffix("Dataset").lower()
        _warn(made, what, _UNEVEN)
    return ""


def _of_pairs(made: Any) -> str:
    of_streams = [_is_of(each, _streams) for each in made._inputs()]
    others = [each for each in made._inputs() if not (_is_endless(each) or type(each).__name__ in _COUNTS)]
    if sum(of_streams) > 1 or (any(of_streams) and any(not _is_of(each, _streams) for each in others)):
        _warn(made, "zip", _PAIRS)
    return ""


def _of_what_is_kept(made: Any) -> str:
    if _is_of(made, _streams) and not all(map(_is_endless, made._inputs())) and not _takes(made):
        _warn(made, "cache", _KEEPS)
    return ""


def _warn(made: Any, what: str, problem: str) -> None:
    print(f"warning: {origin.line_of(made)}: {what}, after data.distribute, {problem}", flush=True)


_COUNTS = ("_RangeDataset", "_RandomDataset")
"""What belongs to any batch."""
_LOOKS = {
    "_ShardDataset": _of_a_shard,
    "_SkipDataset": _of_a_skip,
    "_DirectedInterleaveDataset": _of_a_mixture,
    "_FilterDataset": _of_other_steps,
    "_UnbatchDataset": _of_other_steps,
    "_RebatchDataset": _of_other_steps,
    "_FlatMapDataset": _of_other_steps,
    "_InterleaveDataset": _of_other_steps,
    "_ParallelInterleaveDataset": _of_other_steps,
    "_TakeWhileDataset": _of_other_steps,
    "CacheDataset": _of_what_is_kept,
    "_ZipDataset": _of_pairs,
}
"""By TensorFlow's own class."""


def _is_of(dataset: Any, results: weakref.WeakSet[Any]) -> bool:
    """Whether it is made from one of these; a chain of concatenations may be long."""
    waiting, seen = [dataset], set()
    while waiting:
        each = waiting.pop()
        if each in results:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            waiting.extend(each._inputs())
    return False


def _takes(dataset: Any) -> bool:
    """Whether it is of a few batches, as many as the script says."""
    return type(dataset).__name__ == "_TakeDataset" or any(map(_takes, dataset._inputs()))


def _is_endless(dataset: Any) -> bool:
    return int(dataset.cardinality()) == INFINITE


def _draws(selector: Any) -> bool:
    """Whether it draws without a seed, so otherwise in each process."""
    if type(selector).__name__ == "_RandomDataset":
        return int(selector._seed) == int(selector._seed2) == 0
    return any(map(_draws, selector._inputs()))
