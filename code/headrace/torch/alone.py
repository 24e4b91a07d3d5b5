"""Whether rank 0 iterates alone over a loader that the ranks share: to evaluate, of which it then has its part only.

Rank 1 tells by torch.distributed's store what it begins, and how far it is. Rank 0 looks when rank 1 must have begun
to iterate over the loader as well if it ever will, and once more when the script is over.
"""

from __future__ import annotations

import atexit
import contextlib
import time
from typing import Any

from headrace.torch import distributed as world

SURE_AFTER_BATCHES = 8
"""Of another loader: ranks that train together have made as many steps, give or take what they read ahead. One of
`alike.LOOK_AT_BATCHES`."""
LATE_S = 2.0
"""How much later than rank 0 another rank may begin, at the end of the script."""


class Alone:
    """One loader's word on it.

    Args:
        number: among the loaders that the ranks share.
        prefix: of the loader's words in the store.
    """

    def __init__(self, number: int, prefix: str) -> None:
        self._number, self._prefix = number, prefix
        self._store: Any = None
        self._said = False
        self._iterations, self._others_far = 0, ""

    def begins(self, store: Any) -> None:
        """This rank begins an iteration; `store`: None where there is no other rank."""
        self._store = store
        if store is not None and world.rank() == 1:
            with contextlib.suppress(RuntimeError):
                store.set(self._begun, "")
        self._iterations += 1

    def finished(self) -> None:
        """This rank has had all batches of an epoch."""
        if self._store is None or world.rank() or self in _suspects:
            return
        with contextlib.suppress(RuntimeError):
            if not self._store.check([self._begun]):
                _suspects.append(self)

    def look_at(self, batch: int) -> None:
        """To be called in an iteration over this loader: rank 0 looks at the others, rank 1 tells how far it is."""
        for each in list(_suspects):
            if each is not self:
                each._look(self._far(self._iterations + (batch > 1)))
        if batch == SURE_AFTER_BATCHES and world.rank() == 1 and self._store is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set(self._far(self._iterations), "")

    @property
    def _begun(self) -> str:
        return f"{self._prefix}/begun by rank 1"

    def _far(self, iteration: int) -> str:
        return f"{self._prefix}/iteration {iteration} is far"

    def _look(self, far: str) -> None:
        """Rank 1 tells `far` within an iteration that began after this one."""
        self._others_far = self._others_far or far
        with contextlib.suppress(RuntimeError):
            if not self._said and self._store.check([self._others_far]):
                self._tell_unless(self._store.check([self._begun]))

    def look_at_the_end(self, until: float) -> None:
        """Once more when the script is over; waits for rank 1 until then."""
        with contextlib.suppress(RuntimeError):
            while not self._said and not self._store.check([self._begun]) and time.monotonic() < until:
                time.sleep(0.05)
            if not self._said:
                self._tell_unless(self._store.check([self._begun]))

    def _tell_unless(self, begun: bool) -> None:
        self._said = True
        if not begun:
            print(
                f"warning: rank 0 alone has iterated over loader {self._number + 1} of those that ranks share, and had "
                "its part of the samples: shard_by_rank=False gives it all of them", flush=True,
            )  # fmt: skip


_suspects: list[Alone] = []
"""On rank 0: loaders of which it has had an epoch, and rank 1 had not begun one."""


@atexit.register
def _look_at_the_end() -> None:
    until = time.monotonic() + LATE_S
    for each in _suspects:
        each.look_at_the_end(until)
    _suspects.clear()  # and the store with them
