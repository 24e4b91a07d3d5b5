"""Remember which datasets `data.distribute` and `data.split_by_rank` have returned: nothing is distributed twice."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from headrace.tensorflow import compat

_results: weakref.WeakSet[Any] = weakref.WeakSet()
_ever_shared = False


def given_out(result: tf.data.Dataset, *, shared: bool) -> tf.data.Dataset:
    """Mark a dataset that a rank trains on; `shared`: the ranks share its stream."""
    global _ever_shared
    _results.add(result)
    _ever_shared |= shared
    return result


def is_of_a_result(dataset: Any) -> bool:
    """Whether it is made from a marked one. A chain of concatenations may be long, so this does not recurse."""
    waiting, seen = [dataset], set()
    while waiting:
        each = waiting.pop()
        if each in _results:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            waiting.extend(compat.inputs_of(each))
    return False


def is_shared() -> bool:
    """Whether the ranks have shared a stream."""
    return _ever_shared
