"""Epoch metrics over all ranks: Horovod's `MetricAverageCallback` for Keras 3, with exact held-out metrics."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.keras.optimizer import prepare
from headrace.tensorflow.keras.steps import Logs
from headrace.tensorflow.ranks import collectives

TOLERANCE = 1e-5
"""Largest relative difference at which two ranks' weight norms or learning rates count as equal. Rounding causes
smaller differences; the norms of two models with different random weights differ by more."""


class MetricAverageCallback(keras.callbacks.Callback):
    """Combines epoch metrics over all ranks. Put this callback before callbacks that use the metrics.

    Training metrics are averaged. Held-out metrics, including counts, are exact if each rank evaluates its part of a
    held-out set (`data.split_by_rank`): the ranks' sums are added up, so parts may differ in size. All ranks must
    evaluate, or none. If `test_step` returns values that are not metrics, ranks average their last batches' values.

    Moving statistics (batch normalisation) are averaged before each evaluation and at the end of each epoch, so that
    all ranks end with the same model. Rank 0 warns once if weights or learning rates differ between ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held_out: dict[str, Any] = {}
        self._warned = False

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        prepare(model)

    def on_test_begin(self, logs: Logs = None) -> None:
        _all_or_none({"evaluates": True})
        average_moving_statistics(self.model)

    def on_test_end(self, logs: Logs = None) -> None:
        variables = self.model.metrics_variables
        if collectives.size() == 1 or not variables:
            return
        sums = hvd.grouped_allreduce([tf.convert_to_tensor(each.value) for each in variables], op=hvd.Sum)
        for variable, value in zip(variables, sums, strict=True):
            variable.assign(value)
        # Keras has already read this rank's own results; `on_epoch_end` writes all ranks' results over them.
        self._held_out = {f"val_{name}": _plain(value) for name, value in self.model.get_metrics_result().items()}

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        norm, rate = _norm_and_rate(self.model)
        # A rank without a batch to evaluate may lack a metric; the mean is then over the ranks that have it.
        ours = {name: value for name, value in (logs or {}).items() if name not in self._held_out}
        own = {name: np.asarray(value, np.float64).tolist() for name, value in ours.items()}
        ranks = _all_or_none({"evaluates": False, "norm": norm, "rate": rate, "logs": own})
        average_moving_statistics(self.model)
        self._compare("the norm of the weights", [each["norm"] for each in ranks], epoch + 1)
        self._compare("the learning rate", [each["rate"] for each in ranks], epoch + 1)
        if logs is not None and collectives.size() > 1:
            for name in sorted(set().union(*(each["logs"] for each in ranks))):
                logs[name] = _plain(np.mean([each["logs"][name] for each in ranks if name in each["logs"]], axis=0))
            logs.update(self._held_out)
        self._held_out = {}

    def _compare(self, what: str, values: list[float], epoch: int) -> None:
        low, high = min(values), max(values)
        if high - low > TOLERANCE * abs(high) and collectives.rank() == 0 and not self._warned:
            self._warned = True
            print(
                f"warning: after epoch {epoch} {what} is {low:g} on rank {values.index(low)} and {high:g} on rank "
                f"{values.index(high)}. The ranks train different models. If the ranks began with different weights, "
                "pass hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit(), or call hvd.broadcast_variables in a "
                "custom loop. Put callbacks that change the learning rate after MetricAverageCallback",
                flush=True,
            )


def _all_or_none(ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what each rank passed as `ours`. Raise `InputError` if some ranks evaluate while others end the epoch."""
    ranks = collectives.of_all_ranks(ours, "headrace.epoch")
    if len({each["evaluates"] for each in ranks}) > 1:
        evaluates = next(rank for rank, each in enumerate(ranks) if each["evaluates"])
        raise InputError(
            f"rank {evaluates} evaluates after an epoch, other ranks do not: pass validation_data to fit on every rank "
            "(data.split_by_rank makes each rank's part), or remove MetricAverageCallback"
        )
    return ranks


def _norm_and_rate(model: keras.Model) -> tuple[float, float]:
    weights = [each.value for each in model.trainable_weights if "float" in str(each.dtype)]
    norm = float(tf.linalg.global_norm([tf.cast(each, tf.float32) for each in weights])) if weights else 0.0
    try:
        return norm, float(np.asarray(model.optimizer.learning_rate))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return norm, 0.0  # no learning rate that can be read


def _plain(value: Any) -> Any:
    """Return a metric's value as a float, or as an array if the metric has a number for each class."""
    array = np.asarray(value, np.float64)
    return array.item() if array.ndim == 0 else array


def average_moving_statistics(model: keras.Model) -> None:
    """Average the non-trainable floating-point weights, such as moving means, over the ranks."""
    moving = [v for v in model.non_trainable_weights if "float" in str(v.dtype)]
    if collectives.size() == 1 or not moving:
        return
    means = hvd.grouped_allreduce([tf.convert_to_tensor(variable.value) for variable in moving], op=hvd.Average)
    for variable, mean in zip(moving, means, strict=True):
        variable.assign(mean)
