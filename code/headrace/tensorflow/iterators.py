"""Ends iterators before Python ends: a call from tf.data into Python that is under way then would never return.

TensorFlow's threads read ahead, and what they read may call a Python function (`ends`, `captured`, a script's own
`from_generator`). A thread that waits for Python while Python ends is ended by it, and TensorFlow waits for the thread.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any

LIMIT_S = 30.0
"""For all iterators to end."""
_living: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def end_before_python() -> None:
    """From now on every iterator does so. Called once, by `headrace.tensorflow.data`."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    original = OwnedIterator.__init__

    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        _living[id(self)] = self

    OwnedIterator.__init__ = init
    atexit.register(_end)


def _end() -> None:
    """Iterators end with their resources, and wait for their threads, which go on meanwhile."""
    ending = threading.Thread(target=_drop, name="end iterators", daemon=True)
    ending.start()
    ending.join(LIMIT_S)


def _drop() -> None:
    for reference in _living.valuerefs():  # in one go: a thread of the script's may still make iterators
        if (each := reference()) is not None:
            each._iterator_resource = None
