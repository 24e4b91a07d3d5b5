"""Run a training script until it would begin to train, and keep the datasets that it has made by then."""

from __future__ import annotations

import contextlib
import dis
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import compat, data
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding.dataset_graph import users_line


class _Reached(BaseException):
    """Raised when the script is about to train. It is a BaseException: the script's `except Exception` lets it pass."""


@dataclass
class Captured:
    """The datasets that a script made before its training."""

    wires: list[tf.data.Dataset] = field(default_factory=list)
    """Datasets that `data.distribute` was given, in the order of its calls."""
    shardings: list[str] = field(default_factory=list)
    """The `sharding` argument of each call of `data.distribute`, in the order of the calls."""
    sources: dict[int, str] = field(default_factory=dict)
    """Script lines (`file:line`) that made datasets, keyed by `id`. `kept` holds the datasets, so ids stay unique."""
    distributed: list[tf.data.Dataset] = field(default_factory=list)
    """Datasets that `data.distribute` returned, in the order of its calls."""
    trained: tf.data.Dataset | None = None
    """Dataset that training would have read; None if the script ended before its training."""
    kept: list[tf.data.Dataset] = field(default_factory=list)


def run_to_training(script: Path, arguments: Sequence[str], show_traceback: bool = False) -> Captured:
    """Run `script` as `__main__` until it calls `fit`, or loops over more than one batch of a distributed dataset.

    Raises:
        InputError: the script does not exist, raised, or never called `data.distribute`.
    """
    if not script.is_file():
        raise InputError(f"no script {script}")
    captured = Captured()
    ended = "ended"
    try:
        with _hooks(captured), _as_main(script, arguments):
            runpy.run_path(str(script), run_name="__main__")
    except _Reached as reached:
        ended = f"came to {reached}"
    except SystemExit as exit_:
        if exit_.code not in (None, 0):
            raise InputError(f"{script} exited with code {exit_.code} before training: check its arguments") from None
    except Exception as error:  # the script may raise anything
        if show_traceback:
            traceback.print_exc()
        reason = (" ".join(str(error).split()) or "no message")[:300]
        raise InputError(f"{_line_of(error, script)}: {type(error).__name__}: {reason}") from error
    if not captured.wires:
        raise InputError(
            f"{script} {ended} without calling headrace.tensorflow.data.distribute: call it with the training dataset"
        )
    return captured


class _Look:
    """Iterator over a distributed dataset. A `for` loop or a second `next` counts as training and raises `_Reached`."""

    def __init__(self, begin: Callable[[], Iterator[Any]], dataset: tf.data.Dataset, captured: Captured) -> None:
        self._begin, self._dataset, self._captured = begin, dataset, captured
        self._taken = 0

    def __iter__(self) -> _Look:
        return self

    def __next__(self) -> Any:
        caller = sys._getframe(1)
        loops = dis.opname[caller.f_code.co_code[caller.f_lasti]] == "FOR_ITER"
        self._taken += 1
        if loops or self._taken > 1 or not tf.executing_eagerly():
            self._captured.trained = self._dataset
            raise _Reached("a loop over its dataset")
        return next(self._begin())

    def get_next(self) -> Any:
        """Return the next element, as TensorFlow's own iterators do."""
        return next(self)


def _is_one_batch(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset is `take(1)`: scripts read such a dataset to look at a batch, not to train."""
    return type(dataset).__name__ == "_TakeDataset" and int(compat.argument_of(dataset, "count")) == 1


@contextlib.contextmanager
def _hooks(captured: Captured) -> Iterator[None]:
    base = tf.data.Dataset
    originals = (data.distribute, keras.Model.fit, base.__init__, base.__iter__, data.prefetch_to_device)

    def distribute(dataset: tf.data.Dataset, **how: Any) -> tf.data.Dataset:
        # A new object tells apart the datasets made from `distribute`'s result and those made from its argument.
        wire = originals[0](dataset, **how).with_options(tf.data.Options())
        captured.wires.append(dataset)
        captured.shardings.append(how.get("sharding", "dynamic"))
        captured.distributed.append(wire)
        return wire

    def fit(model: keras.Model, x: Any = None, *_: Any, **__: Any) -> None:
        captured.trained = x if isinstance(x, tf.data.Dataset) else None
        raise _Reached("fit")

    def init(self: tf.data.Dataset, *args: Any, **options: Any) -> None:
        captured.sources[id(self)] = users_line()
        captured.kept.append(self)
        originals[2](self, *args, **options)

    def iterate(self: tf.data.Dataset) -> Any:
        if not any(_is_made_from(self, wire) for wire in captured.distributed) or _is_one_batch(self):
            return originals[3](self)
        return _Look(lambda: originals[3](self), self, captured)

    _patch(base, distribute, fit, init, iterate, lambda dataset: dataset.prefetch(1))  # as if there were a GPU
    try:
        yield
    finally:
        _patch(base, *originals)


def _patch(base: Any, distribute: Callable[..., Any], fit: Any, init: Any, iterate: Any, prefetch: Any) -> None:
    data.distribute, keras.Model.fit, base.__init__, base.__iter__ = distribute, fit, init, iterate
    data.prefetch_to_device = prefetch


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set the process up as `python SCRIPT ARGUMENTS` would. Prints go to stderr; no bytecode file is written."""
    before = sys.argv, sys.path[:], sys.dont_write_bytecode
    of_a_job = ("HEADRACE_TF_DATA_MODE", "HEADRACE_DISPATCHER")
    service = {name: os.environ.pop(name) for name in of_a_job if name in os.environ}
    collectives.find_open_mpi()
    sys.argv, sys.dont_write_bytecode = [str(script), *arguments], True
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr), _descriptor_to_stderr():
            yield
    finally:
        sys.argv, sys.path[:], sys.dont_write_bytecode = before
        os.environ.update(service)


@contextlib.contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    """Redirect file descriptor 1 to stderr: libraries and child programs write to descriptor 1, not to `sys.stdout`."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _is_made_from(dataset: tf.data.Dataset, source: tf.data.Dataset) -> bool:
    return dataset is source or any(_is_made_from(each, source) for each in compat.inputs_of(dataset))


def _line_of(error: Exception, script: Path) -> str:
    """Return the line of the script, as `file:line`, that raised the error or has the syntax error."""
    if isinstance(error, SyntaxError) and error.filename == str(script):
        return f"{script}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(script)]
    return f"{script}:{frames[-1].lineno}" if frames else str(script)
