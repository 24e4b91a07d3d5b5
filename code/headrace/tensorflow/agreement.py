"""What ranks tell each other about the end of a stream, and what each may conclude.

Every pass over a stream has a number, the same on all ranks: how many passes they have begun. A message says: in this
pass I have had so many batches, and that was all, or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow import world
from headrace.tensorflow.post import Numbers, Post
from headrace.tensorflow.signals import say

SAY_AFTER_S = 15.0
"""Who waits so long at a stream's end says for whom."""


@dataclass(frozen=True)
class _Pass:
    """How far a rank has come in a pass."""

    number: int = 0
    batches: int = 0
    ended: bool = False


@dataclass
class _Wait:
    """A batch that may not be handed out yet."""

    at: int
    here: bool
    since: float = field(default_factory=time.monotonic)
    said: bool = False


class Agreement:
    """One stream's, on one rank. Passes are begun and batches arrive in tf.data's threads."""

    def __init__(self, stream: str, uneven: str, ranks: int, rank: int, wake: threading.Event) -> None:
        self.stream, self._uneven = stream, uneven
        self.decisions = tf.queue.FIFOQueue(-1, [tf.int64, tf.bool], [[], []])
        self._peers: dict[int, dict[int, _Pass]] = {other: {} for other in range(ranks) if other != rank}
        self._rank, self._wake = rank, wake
        self._lock = threading.Lock()
        self._mine = _Pass()
        self._left: list[_Pass] = []  # earlier passes, of which the others may not know the end
        self._told = _Pass(-1)
        self._wait: _Wait | None = None

    # tf.data's threads

    def passes(self) -> Iterator[np.int64]:
        """The number of a pass that begins; it is over when TensorFlow drops this generator, with the iterator."""
        with self._lock:
            self._left.append(self._mine)
            number = self._mine.number + 1
            self._mine, self._wait = _Pass(number), None
        self._wake.set()
        try:
            yield np.int64(number)
        finally:
            self._leave(number)

    def _leave(self, number: int) -> None:
        with self._lock:
            if number == self._mine.number:
                self._mine, self._wait = replace(self._mine, ended=True), None
        self._wake.set()

    def arrived(self, number: np.int64, at: np.int64, here: np.bool_) -> np.bool_:
        """Batch `at` of a pass is here, or will not come; whether its rank must wait for a decision.

        Raises:
            InputError: this rank had none at all.
        """
        with self._lock:
            if int(number) != self._mine.number:
                return np.bool_(False)  # of an older pass, which nobody reads any more
            if here:
                self._mine = _Pass(int(number), int(at) + 1)
            else:
                self._mine = _Pass(int(number), self._mine.batches, ended=True)
                if not at and self._uneven == "pad":
                    self._wake.set()
                    raise InputError(
                        f"rank {self._rank} got no batch of {self.stream!r}: it has fewer batches than there are "
                        "ranks, or none; make batches smaller, or use fewer ranks"
                    )
            must_wait = not here or self._uneven == "drop"
            if must_wait:
                self._wait = _Wait(int(at), bool(here))
        if must_wait or self._somebody_ended():
            self._wake.set()
        return np.bool_(must_wait)

    # The office's threads

    def heard(self, rank: int, number: int, batches: int, ended: bool) -> None:
        with self._lock:
            passes = {each.number: each for each in self._peers[rank].values() if each.number >= self._mine.number}
            self._peers[rank] = {**passes, number: _Pass(number, batches, ended)}

    def news(self) -> list[_Pass]:
        """What the others need to be told."""
        with self._lock:
            mine, left, self._left = self._mine, self._left, []
            tell = [_Pass(each.number, each.batches, ended=True) for each in left if each.number]
            needed = mine.ended or self._uneven == "drop" or self._somebody_ended() or self._told.number != mine.number
            if mine.number and needed and mine != self._told:
                self._told = mine
                tell.append(mine)
            return tell

    def decide(self) -> bool:
        """Settle the wait, if it can be; whether one is left."""
        with self._lock:
            wait, number = self._wait, self._mine.number
            if wait is None:
                return False
            goes_on = self._verdict(wait, number)
            if goes_on is None:
                self._say_waiting(wait)
                return True
            self._wait = None
            if not goes_on and self._rank == 0:
                self._say_ended(wait)
        self.decisions.enqueue([tf.constant(number, tf.int64), tf.constant(goes_on)])
        return False

    def _verdict(self, wait: _Wait, number: int) -> bool | None:
        """Whether batch `wait.at` is for all ranks; None while that is not known."""
        passes = [each.get(number, _Pass(number)) for each in self._peers.values()]
        there = [each.batches > wait.at for each in passes]
        over = [each.ended and each.batches <= wait.at for each in passes]
        if self._uneven == "drop":
            if not wait.here or any(over):
                return False
            return True if all(there) else None
        if any(there):
            return True
        return False if all(over) else None

    def _somebody_ended(self) -> bool:
        return any(each[self._mine.number].ended for each in self._peers.values() if self._mine.number in each)

    def _say_waiting(self, wait: _Wait) -> None:
        if wait.said or time.monotonic() - wait.since < SAY_AFTER_S:
            return
        wait.said = True
        number = self._mine.number
        behind = [rank for rank, each in self._peers.items() if not each.get(number, _Pass()).ended]
        say("waits_for_ends", stream=self.stream, rank=self._rank, batches=wait.at, ranks=",".join(map(str, behind)))
        for rank in behind:
            newest = max(self._peers[rank], default=0)
            if newest != number:
                print(
                    f"rank {self._rank} is in pass {number} over {self.stream!r}, rank {rank} in pass {newest}: "
                    "all ranks must iterate over it equally often", flush=True,
                )  # fmt: skip

    def _say_ended(self, wait: _Wait) -> None:
        number = self._mine.number
        counts = [self._mine.batches, *(each.get(number, _Pass()).batches for each in self._peers.values())]
        if len(set(counts)) > 1:
            what = {"padded": sum(wait.at - n for n in counts)} if self._uneven == "pad" else {
                "dropped_at_least": sum(n - wait.at for n in counts)}  # fmt: skip
            say("stream_ended", stream=self.stream, number=number, steps=wait.at, batches=sum(counts), **what)


class _Office:
    """All agreements of this rank, and the post between ranks."""

    def __init__(self) -> None:
        self.agreements: list[Agreement] = []
        self._early: list[tuple[int, Numbers]] = []  # of streams that this rank has not joined yet
        self._lock = threading.Lock()
        self.wake = threading.Event()
        self._post = Post(self._take)
        threading.Thread(target=self._run, name="ends of streams", daemon=True).start()

    def join(self, agreement: Agreement) -> None:
        with self._lock:
            self.agreements.append(agreement)
            early, self._early = self._early, []
        for rank, numbers in early:
            self._take(rank, numbers)

    def _take(self, rank: int, numbers: Numbers) -> None:
        index, number, batches, ended = numbers
        with self._lock:
            if index >= len(self.agreements):
                self._early.append((rank, numbers))
                return
        self.agreements[index].heard(rank, number, batches, bool(ended))
        self.wake.set()

    def _run(self) -> None:
        while True:
            waiting = False
            for index, agreement in enumerate(list(self.agreements)):
                for each in agreement.news():
                    self._post.tell((index, each.number, each.batches, int(each.ended)))
                waiting |= agreement.decide()
            self.wake.wait(SAY_AFTER_S if waiting else None)
            self.wake.clear()


_office: list[_Office] = []


def join(stream: str, uneven: str) -> Agreement:
    """This rank's part in agreeing on the ends of a stream. Every rank must call it, in the same order."""
    if not _office:
        _office.append(_Office())
    office = _office[0]
    agreement = Agreement(stream, uneven, world.size(), world.rank(), office.wake)
    office.join(agreement)
    return agreement
