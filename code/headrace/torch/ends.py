"""Streams end at different steps on different ranks, and none knows before: the ranks agree, step by step.

Each rank says of each step whether it has a batch, in torch.distributed's store, a few steps before it trains on it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from headrace.errors import DeadlineError

FIRST_POLL_S, LONGEST_POLL_S = 0.0005, 0.02
_ENDED = 1 << 24
"""What a rank without a batch adds to a step's count; others add one."""


class Ends:
    """One iteration over a loader, on one rank.

    Args:
        store: of all ranks; None where there is one.
        name: of the iteration, the same on all ranks.
        limit_s: how long to wait for the others.
    """

    def __init__(self, store: Any, name: str, rank: int, world: int, limit_s: float) -> None:
        self._store, self._name, self._rank, self._world, self._limit_s = store, name, rank, world, limit_s
        self._own: dict[int, int] = {}
        self._step = 0
        self.closed = threading.Event()

    def part_ended(self, part: int, batches: int) -> None:
        """This rank has come to the end of a part, which had so many batches; not when it has broken off."""
        if self.closed.is_set():
            return
        self._own[part] = batches
        if self._store is not None:
            self._store.set(f"{self._name}/ends/{self._rank}", json.dumps(self._own))

    def lengths(self) -> Mapping[int, int]:
        """Batches of all parts that have ended, on any rank."""
        found = dict(self._own)
        for rank in range(self._world) if self._store is not None else ():
            key = f"{self._name}/ends/{rank}"
            with contextlib.suppress(RuntimeError):  # rank 0 has ended, and the store with it
                if rank != self._rank and self._store.check([key]):
                    found |= {int(part): batches for part, batches in json.loads(self._store.get(key)).items()}
        return found

    def have(self, has_batch: bool) -> int:
        """How many ranks have a batch for the next step. Waits until all have said so. Raises `DeadlineError`."""
        if self._store is None:
            return int(has_batch)
        try:
            return self._all_said(has_batch)
        except RuntimeError:  # rank 0 has ended, and the store with it: so it knew that this was the last step
            return 0

    def _all_said(self, has_batch: bool) -> int:
        key, self._step = f"{self._name}/{self._step}", self._step + 1
        said = self._store.add(key, 1 if has_batch else _ENDED)
        pause_s, deadline = FIRST_POLL_S, time.monotonic() + self._limit_s
        while said % _ENDED + said // _ENDED < self._world:
            if self.closed.is_set():
                return 0
            if time.monotonic() > deadline:
                told = said % _ENDED + said // _ENDED
                raise DeadlineError(
                    f"{told} of {self._world} ranks have come to step {self._step} of a loader within "
                    f"{self._limit_s:g} s: do all ranks iterate over it alike?"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_POLL_S)
            said = self._store.add(key, 0)
        if self._rank == 0 and self._step > 1:  # all have gone on from the step before
            with contextlib.suppress(RuntimeError, NotImplementedError):  # not every store forgets
                self._store.delete_key(f"{self._name}/{self._step - 2}")
        return int(said % _ENDED)
