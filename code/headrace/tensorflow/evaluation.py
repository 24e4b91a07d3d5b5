"""Keras's evaluations and predictions: what they read ends on each rank by itself, so that each batch counts once.

Unless a step of theirs waits for the other ranks, as a `test_step` that averages does: then all make equally many.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from headrace.tensorflow import world
from headrace.tensorflow.hooks import around

_COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")


class Evaluation:
    """One call of `evaluate` or `predict`."""

    def __init__(self) -> None:
        self._has_made_a_step = False

    def pads(self) -> bool | None:
        """Whether ranks are to make equally many steps; None before the first one, which shows it."""
        return True if _waiting else False if self._has_made_a_step else None

    def makes_a_step(self) -> bool:
        """A step is over; whether it is the first."""
        first, self._has_made_a_step = not self._has_made_a_step, True
        return first


_current: list[Evaluation] = []
_steps_are_made: list[bool] = []
"""Not empty: what is called now belongs to an evaluation's steps, and not to its begin and end."""
_waiting: list[bool] = []
"""Not empty: a step of an evaluation has been seen to wait for other ranks. Its graph is not made again."""


def current() -> Evaluation | None:
    """That which is going on."""
    return _current[-1] if _current else None


def look(first_step_is_over: Callable[[], None]) -> None:
    """From now on evaluations are noticed. Called once."""
    from horovod.tensorflow.mpi_ops import MPI_LIB
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.callbacks.callback_list import CallbackList

    for name in dir(MPI_LIB):
        if name.startswith("horovod_") and any(each in name for each in _COLLECTIVES):
            setattr(MPI_LIB, name, _noted(getattr(MPI_LIB, name)))
    for kind, call in (("test", "evaluate"), ("predict", "predict")):
        setattr(TensorFlowTrainer, call, _noticed(getattr(TensorFlowTrainer, call)))
        around(CallbackList, f"on_{kind}_begin", after=lambda: _steps_are_made.append(True))
        around(CallbackList, f"on_{kind}_batch_end", after=lambda: _step_is_over(first_step_is_over))
        around(CallbackList, f"on_{kind}_end", before=_steps_are_made.clear)


def _noticed(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def noticed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if world.size() == 1:
            return call(self, *args, **kwargs)
        mine = Evaluation()
        _current.append(mine)
        try:
            return call(self, *args, **kwargs)
        finally:
            _current.remove(mine)
            _steps_are_made.clear()

    return noticed


def _noted(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if _steps_are_made and not _waiting:
            _waiting.append(True)
        return collective(*args, **kwargs)

    return noted


def _step_is_over(first_step_is_over: Callable[[], None]) -> None:
    if (mine := current()) and mine.makes_a_step():
        first_step_is_over()
