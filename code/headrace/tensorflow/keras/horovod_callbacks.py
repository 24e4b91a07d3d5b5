"""Horovod's Keras callbacks for Keras 3; scripts use them as `hvd.callbacks` of `horovod_keras`."""

from __future__ import annotations

from typing import Any

from headrace.tensorflow.keras.broadcast import BroadcastGlobalVariablesCallback
from headrace.tensorflow.keras.learning_rate import LearningRateScheduleCallback, LearningRateWarmupCallback
from headrace.tensorflow.keras.metric_average import MetricAverageCallback

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


def __getattr__(name: str) -> Any:
    if name == "BestModelCheckpoint":  # Horovod has it for Spark, whose estimator sets its path
        raise AttributeError(
            "headrace has no hvd.callbacks.BestModelCheckpoint: where hvd.rank() == 0, give fit "
            "keras.callbacks.ModelCheckpoint(path, save_best_only=True) after hvd.callbacks.MetricAverageCallback()"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
