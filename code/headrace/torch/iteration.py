"""One iteration over a loader, as torch's: with a length, and no end where there was an error."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Generator, Iterator
from typing import Any

_open: weakref.WeakValueDictionary[int, Iteration] = weakref.WeakValueDictionary()
"""Those whose batches threads of this process receive."""
os.register_at_fork(after_in_child=_open.clear)


class Iteration(Iterator[Any]):
    """A loader's batches.

    A script may catch what `next` raises, and go on. The batches after that one are not to be had, and that they are
    missing must not look like the end of the epoch: the process ends.
    """

    def __init__(self, batches: Generator[Any, None, None], loader: Any) -> None:
        self._batches, self._loader = batches, loader
        self._error: Exception | None = None
        if loader.made_elsewhere:
            _open[id(self)] = self

    def __next__(self) -> Any:
        if self._error is not None:
            said = str(self._error).partition("\n")[0]
            raise SystemExit(
                "the script went on after its loader had raised (to leave bad samples out, give the loader "
                f"on_error='skip'): {said}"
            )
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise

    def __len__(self) -> int:
        return len(self._loader)

    def close(self) -> None:
        """Give up what is left of the epoch."""
        self._batches.close()


@atexit.register
def _give_up() -> None:
    """What the script has left open ends before Python does: a thread that is in torch by then aborts the process."""
    for reference in _open.valuerefs():  # in one go: a thread of the script's may still begin others
        with contextlib.suppress(Exception):  # it takes a batch
            if (each := reference()) is not None:
                each.close()
