"""What is looked at where Keras ends an epoch or an evaluation, whatever callbacks a script gives.

Most of what goes wrong between ranks is without an error: each trains a model of its own, or averages gradients of
models that differ, or evaluates some batches twice.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from typing import Any

from headrace.tensorflow import afterwards, trained
from headrace.tensorflow.keras import epochs, evaluation, progress_counts
from headrace.tensorflow.ranks import agreement_thread, collectives

_MARK = "_headrace_looks"
_applied: list[bool] = []
"""Not empty: an optimizer has changed a model."""
_told: set[str] = set()


def look() -> None:
    """From now on; and epochs end by themselves. Called by whatever of headrace's a script imports first."""
    from keras.src.callbacks.callback_list import CallbackList
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    if hasattr(CallbackList, _MARK):
        return
    setattr(CallbackList, _MARK, True)
    epochs.end_by_themselves()
    evaluation.look(step_is_known=agreement_thread.decide_anew)
    _after(CallbackList, "on_epoch_end", _epoch_ended)
    _after(CallbackList, "on_test_begin", _evaluation_began)
    _after(CallbackList, "on_test_end", _evaluation_ended)
    _after(BaseOptimizer, "apply", _has_applied)
    atexit.register(_warn_if_apart)


def _after(of: type, name: str, do: Callable[[], None]) -> None:
    original = getattr(of, name)

    @functools.wraps(original)
    def both(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        do()
        return result

    setattr(of, name, both)


def _has_applied() -> None:
    if not _applied:
        _applied.append(True)


def _epoch_ended() -> None:
    _warn_if_apart()
    trained.compare()


def _warn_if_apart() -> None:
    """Not of a script that only evaluates, nor of ranks that have datasets of their own."""
    if _applied and afterwards.is_shared():
        progress_counts.warn_if_apart()


def _evaluation_began() -> None:
    if collectives.size() > 1:
        agreement_thread.forget_repeated()


def _evaluation_ended() -> None:
    if collectives.size() == 1:
        return
    for name, count in agreement_thread.repeated().items():
        if name not in _told:
            _told.add(name)
            print(
                f"warning: rank {collectives.rank()} evaluated {count} batch{'es' if count > 1 else ''} of {name!r} "
                "twice, so that all ranks make equally many steps, which wait for each other (or run eagerly, where "
                "that is not known). Where each is to count once: hvd.callbacks.MetricAverageCallback(), and no "
                "hvd.allreduce in test_step", flush=True,
            )  # fmt: skip
