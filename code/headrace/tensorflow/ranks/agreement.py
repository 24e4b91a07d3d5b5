"""What ranks tell each other about the end of a stream, and what each may conclude. No threads, no TensorFlow.

Every pass over a stream has a number, the same on all ranks: how many passes they have begun. Ranks tell each other: in
this pass I have had so many batches, and that was all, or not.
"""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from headrace.events import WAITS_FOR_ENDS, say

SAY_AFTER_S = 15.0
"""Who waits so long at a stream's end says for whom."""
FIRST_PATIENCE_S = 5.0
"""How long a rank's second batch waits for the others' first, so that short streams have one for each rank; a rank that
looks at a stream alone goes on then."""


@dataclass(frozen=True)
class Pass:
    """How far a rank has come in a pass."""

    number: int = 0
    batches: int = 0
    ended: bool = False


def always() -> bool | None:
    return True


@dataclass
class _Wait:
    """A batch that may not be handed out yet."""

    at: int
    here: bool
    pads: Callable[[], bool | None]
    since: float = field(default_factory=time.monotonic)
    said: bool = False


class Agreement:
    """One stream's, on one rank; for one thread alone.

    Args:
        gone: ranks that read nothing any more; may grow.
    """

    def __init__(self, stream: str, uneven: str, ranks: int, rank: int, gone: Collection[int] = frozenset()) -> None:
        self._stream, self._uneven, self._rank, self._gone = stream, uneven, rank, gone
        self._peers: dict[int, dict[int, Pass]] = {other: {} for other in range(ranks) if other != rank}
        self._mine = Pass()
        self._given_up: list[Pass] = []
        self._told = Pass(-1)
        self._wait: _Wait | None = None
        self.others_read: dict[int, tuple[int, int]] = {}
        """By rank: the newest pass that it is known to read while it trains, and after how many steps it began it."""

    # What happens on this rank

    def began(self, number: int, before: Mapping[int, int]) -> list[tuple[int, bool]]:
        """A pass begins, and any `before` is over, with these batches by its number; decisions that this makes."""
        self.had(before)
        old, released = self._mine, self._wait
        self._given_up.append(replace(old, ended=True))
        self._mine, self._wait = Pass(number), None
        return [(old.number, False)] if released else []

    def had(self, batches: Mapping[int, int]) -> None:
        """So many batches were handed out, by the numbers of passes."""
        mine = self._mine
        if not mine.ended:
            self._mine = replace(mine, batches=max(mine.batches, batches.get(mine.number, 0)))

    def waits(
        self, number: int, at: int, here: bool, pads: Callable[[], bool | None] = always
    ) -> list[tuple[int, bool]]:
        """Batch `at` is here, or will not come, and whoever reads it waits; decisions that this makes.

        `pads`: whether the last one comes again until no rank has more; None while that is not known.
        """
        if number != self._mine.number:
            return [(number, False)]  # of a pass that is over
        self._wait = _Wait(at, here, pads)
        if here:
            self.had({number: at + 1})
        else:
            self.ended(number, at)
        return []

    def ended(self, number: int, batches: int) -> None:
        """There are no more than these batches in a pass."""
        if number == self._mine.number and not self._mine.ended:
            self._mine = Pass(number, batches, ended=True)

    def left(self, number: int) -> None:
        """Nobody reads a pass any more."""
        if number == self._mine.number:
            self._mine, self._wait = replace(self._mine, ended=True), None

    # What others say, and what follows

    def heard(self, rank: int, said: Pass) -> None:
        """Another rank has said this; what it said before may come later."""
        known = {each.number: each for each in self._peers[rank].values() if each.number >= self._mine.number}
        before = known.get(said.number, said)
        merged = Pass(said.number, max(said.batches, before.batches), said.ended or before.ended)
        self._peers[rank] = {**known, said.number: merged}

    def reads(self, rank: int, number: int, began: int) -> None:
        """Another rank trains with a pass that it began after so many steps."""
        self.others_read[rank] = max((number, began), self.others_read.get(rank, (0, 0)))

    @property
    def somebody_ended(self) -> bool:
        """Whether another rank has had all of its batches in this pass."""
        return any(each.ended for each in self._now().values())

    def news(self) -> list[Pass]:
        """What the others need to be told."""
        tell, self._given_up = [each for each in self._given_up if each.number], []
        mine = self._mine
        first = self._told.number != mine.number or (mine.batches and not self._told.batches)
        needed = mine.ended or self._uneven == "drop" or self.somebody_ended or first
        if mine.number and needed and mine != self._told:
            self._told = mine
            tell.append(mine)
        return tell

    def decisions(self) -> list[tuple[int, bool]]:
        """The number of the pass that waits, and whether its batch is for all ranks, once that is known."""
        wait = self._wait
        goes_on = self._verdict(wait) if wait else None
        if wait is None or goes_on is None:
            return []
        self._wait = None
        if not goes_on and self._rank == 0 and (self._uneven == "drop" or wait.pads()):
            self._say_ended(wait)
        return [(self._mine.number, goes_on)]

    def still_waits(self) -> bool:
        """Whether a batch waits for others; after a while, says for whom."""
        wait = self._wait
        if wait and not wait.said and time.monotonic() - wait.since >= SAY_AFTER_S:
            wait.said = True
            self._say_waiting(wait)
        return wait is not None

    def _verdict(self, wait: _Wait) -> bool | None:
        """Whether batch `wait.at` is for all ranks; None while that is not known."""
        passes = self._now().values()
        there = [each.batches > wait.at for each in passes]
        over = [each.ended and each.batches <= wait.at for each in passes]
        if self._uneven == "drop":
            if not wait.here or any(over):
                return False
            return True if all(there) else None
        if wait.here:  # this rank's second
            have_one = all(each.batches or each.ended for each in passes)
            return True if have_one or time.monotonic() - wait.since >= FIRST_PATIENCE_S else None
        if all(over):
            return False
        pads = wait.pads()
        if pads is False:  # the others are to read it too: who does so alone may have a part of it
            newest = {rank: max(each, default=0) for rank, each in self._peers.items()}
            return False if all(newest[rank] >= self._mine.number for rank in {*newest} - {*self._gone}) else None
        return pads and (any(there) or None)

    def _now(self) -> dict[int, Pass]:
        """How far the others have come in this pass, as far as is known; who is gone comes no further."""
        number = self._mine.number
        known = {rank: each.get(number, Pass(number)) for rank, each in self._peers.items()}
        return {rank: replace(each, ended=each.ended or rank in self._gone) for rank, each in known.items()}

    def _say_waiting(self, wait: _Wait) -> None:
        number = self._mine.number
        behind = [rank for rank, each in self._now().items() if not each.ended and each.batches <= wait.at]
        passes = {rank: max(self._peers[rank], default=0) for rank in behind}
        apart = [f"rank {rank} in pass {newest}" for rank, newest in passes.items() if newest != number]
        passes_of = f"rank {self._rank} is in pass {number}, {', '.join(apart)}"
        why = f"{passes_of}: all ranks must iterate over it equally often; what one evaluates alone is not distributed"
        fields = {"why": urllib.parse.quote(why)} if apart else {}
        say(WAITS_FOR_ENDS, stream=self._stream, rank=self._rank, batches=wait.at, ranks=",".join(map(str, behind)),
            **fields)  # fmt: skip
        if apart:
            print(f"{self._stream!r}: {why}", flush=True)

    def _say_ended(self, wait: _Wait) -> None:
        number = self._mine.number
        counts = [self._mine.batches, *(each.get(number, Pass()).batches for each in self._peers.values())]
        if len(set(counts)) > 1:
            what = {"padded": sum(wait.at - n for n in counts)} if self._uneven == "pad" else {
                "dropped_at_least": sum(n - wait.at for n in counts)}  # fmt: skip
            say("stream_ended", stream=self._stream, number=number, steps=wait.at, batches=sum(counts), **what)
