"""Find the line of the user's script that called headrace, for messages."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import keras
import tensorflow as tf

UNKNOWN = "?"
_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) + os.sep for module in (tf, keras, sys.modules["headrace"]))


def users_line() -> str:
    """Return the script's line, as `file:line`: the innermost caller outside TensorFlow, Keras and headrace."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((*_LIBRARIES, "<")):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return UNKNOWN
