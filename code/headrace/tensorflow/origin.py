"""Which line of the user's script made a dataset: noted when it is made, for messages that name it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

UNKNOWN = "?"
_LINE = "_headrace_line"
_NOT_THE_USERS = tuple(
    str(Path(str(module.__file__)).parent) + os.sep for module in (tf, keras, sys.modules["headrace"], contextlib)
)


listeners: list[Callable[[Any], None]] = []
"""Called with each dataset that the user's code makes."""


def note_lines() -> None:
    """From now on every dataset knows the line that made it. Called once, by `headrace.tensorflow.data`."""
    base = dataset_base()
    if hasattr(base, _LINE):
        return
    original = base.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        caller = sys._getframe(1)
        setattr(self, _LINE, users_line(caller))
        original(self, *args, **options)
        if listeners and _is_the_users(caller):
            for each in listeners:
                each(self)

    setattr(base, _LINE, UNKNOWN)
    base.__init__ = init


def line_of(dataset: Any) -> str:
    """`file:line` of the user's that made a dataset; `?` where nobody noted it."""
    return str(getattr(dataset, _LINE, UNKNOWN))


def users_line(frame: FrameType | None = None) -> str:
    """`file:line` of the innermost frame that is neither TensorFlow's, Keras's nor headrace's."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((*_NOT_THE_USERS, "<")):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return UNKNOWN


def _is_the_users(frame: FrameType | None) -> bool:
    """Whether TensorFlow was called by the user's code, and not by Keras's or headrace's."""
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS[0]):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_NOT_THE_USERS)


def dataset_base() -> Any:
    """The class that all datasets are of."""
    from tensorflow.python.data.ops.dataset_ops import DatasetV2

    return DatasetV2


class Line:
    """Stands for a dataset of which only the line is known."""

    def __init__(self, line: str) -> None:
        self._headrace_line = line

    def _inputs(self) -> list[Any]:
        return []
