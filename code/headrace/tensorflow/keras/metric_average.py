"""Epoch metrics of all ranks together: Horovod's `MetricAverageCallback` for Keras 3, with exact held-out metrics."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from headrace.tensorflow.ranks import collectives

Logs = dict[str, Any] | None
_EVALUATES = "headrace.evaluates"
"""Under this name each rank says what it is about to do after an epoch's steps: to evaluate, or to end the epoch."""


class MetricAverageCallback(keras.callbacks.Callback):
    """Makes epoch metrics those of all ranks together; put it before callbacks that use them.

    Training metrics are averaged. Held-out metrics are exact, counts too: whether ranks evaluate parts, of
    different size perhaps, whose sums are added up, or each of them the whole set; or rank 0 alone evaluates, and
    the others are told its results. A metric of one's own whose
    variables are no sums (a maximum, say) needs the whole set on each rank. Moving statistics (batch
    normalisation) are averaged before each evaluation and at the end of each epoch, so that all
    ranks end with the same model.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held_out: dict[str, Any] = {}
        self._of_some = False
        """Whether some ranks evaluate, and others do not."""

    def on_test_begin(self, logs: Logs = None) -> None:
        self._of_some = not all(collectives.of_all_ranks(True, _EVALUATES))
        average_moving_statistics(self.model)

    def on_test_end(self, logs: Logs = None) -> None:
        if collectives.size() == 1 or self._of_some:
            return
        if _evaluated_the_same(self.model.metrics_variables):
            return  # all ranks have all of the held-out set, and its sums
        own = _numbers(self.model.get_metrics_result())
        for variable in self.model.metrics_variables:
            variable.assign(hvd.allreduce(tf.convert_to_tensor(variable.value), op=hvd.Sum))
        # Keras has taken this rank's results already; they are put right in `on_epoch_end`.
        result = _numbers(self.model.get_metrics_result())
        result |= _under_other_names(_numbers(logs or {}), own, result)
        self._held_out = {f"val_{name}": _plain(np.asarray(value, np.float64)) for name, value in result.items()}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        while any(collectives.of_all_ranks(False, _EVALUATES)):
            self._of_some = True  # and those that do begin as this rank does
            average_moving_statistics(self.model)
        average_moving_statistics(self.model)
        if collectives.size() == 1 or not logs:
            return
        if self._of_some:
            self._held_out = _told_by_some({name: each for name, each in logs.items() if name.startswith("val_")})
        # A rank may have had no batch to evaluate, and then has no such names.
        names = sorted(name for name in logs if not (self._held_out and name.startswith("val_")))
        ours = [np.asarray(logs[name], np.float64) for name in names]
        flat = np.concatenate([np.zeros(0), *(each.ravel() for each in ours)])
        means = np.asarray(hvd.allreduce(tf.constant(flat), op=hvd.Average))
        ends = np.cumsum([each.size for each in ours])
        for name, value, end in zip(names, ours, ends, strict=True):
            logs[name] = _plain(means[end - value.size : end].reshape(value.shape))
        logs.update(self._held_out)
        self._held_out, self._of_some = {}, False


def _numbers(results: Mapping[str, Any]) -> dict[str, Any]:
    """As lists and numbers; what is neither is left out."""
    found = {}
    for name, each in results.items():
        with contextlib.suppress(TypeError, ValueError):
            found[name] = np.asarray(each, np.float64).tolist()
    return found


def _under_other_names(returned: dict[str, Any], own: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Of all ranks, what a `test_step` has returned under names that no metric has.

    A metric's result, if it is that metric's on all ranks: Keras's own examples return `Mean(name="total_loss")` as
    "loss". Else the mean over the ranks, of which it warns.

    Args:
        returned: by this rank's last step.
        own: this rank's metrics, before sums were added up.
        result: those of all ranks.
    """
    ours = {
        name: {"value": value, "is": [metric for metric, each in own.items() if _close(each, value)]}
        for name, value in returned.items()
        if name not in own or not _close(own[name], value)  # compile() makes a "loss" of its own
    }
    found: dict[str, list[Any]] = {}
    for theirs in collectives.of_all_ranks(ours, "headrace.other_names"):
        for name, told in theirs.items():  # a rank that had no batch has none
            found.setdefault(name, []).append(told)
    made: dict[str, Any] = {}
    means = []
    for name, told in sorted(found.items()):
        if metrics := set.intersection(*(set(each["is"]) for each in told)) & set(result):
            made[name] = result[min(metrics)]
        else:
            means.append(name)
            made[name] = np.mean([each["value"] for each in told], axis=0)
    if means:
        _warn_of_means(tuple(means))
    return made


def _close(one: Any, other: Any) -> bool:
    return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=1e-5, atol=0, equal_nan=True)


@functools.cache
def _warn_of_means(names: tuple[str, ...]) -> None:
    if hvd.rank() == 0:
        print(
            f"warning: test_step returns {', '.join(names)}, which no metric of the model is: each rank has that of "
            "its last batch, and what is told is their mean; make it a keras.metrics.Metric, and it is that of all",
            flush=True,
        )


def _told_by_some(results: dict[str, Any]) -> dict[str, Any]:
    """The results of the ranks that have evaluated, the same on all: those of the first that has them."""
    ours = {name: np.asarray(each, np.float64).tolist() for name, each in results.items()}
    found: dict[str, Any] = {}
    for theirs in reversed(collectives.of_all_ranks(ours, "headrace.held_out")):
        found |= {name: _plain(np.asarray(each, np.float64)) for name, each in theirs.items()}
    return found


def _plain(value: np.ndarray[Any, Any]) -> Any:
    """A number, or, of a metric for each class, the array."""
    return value.item() if value.ndim == 0 else value


def _evaluated_the_same(variables: list[keras.Variable]) -> bool:
    """Whether metrics' sums, counts among them, are the same on all ranks, but for the order of additions."""
    sums = [np.asarray(variable.value, np.float64).ravel() for variable in variables]
    ours = np.concatenate([*sums, np.zeros(1)])
    first = np.asarray(hvd.broadcast(tf.constant(ours), root_rank=0))
    return all(collectives.of_all_ranks(bool(np.allclose(ours, first, rtol=1e-5, atol=0)), "headrace.evaluated"))


def average_moving_statistics(model: keras.Model) -> None:
    """Average the floating-point non-trainable weights over the ranks."""
    moving = [v for v in model.non_trainable_weights if "float" in str(v.dtype)]
    if collectives.size() == 1 or not moving:
        return
    means = hvd.grouped_allreduce([tf.convert_to_tensor(variable.value) for variable in moving], op=hvd.Average)
    for variable, mean in zip(moving, means, strict=True):
        variable.assign(mean)
