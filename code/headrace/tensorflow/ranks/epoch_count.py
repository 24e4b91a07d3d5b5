"""Decide on rank 0, from all ranks' messages, when a stream's epochs end. It uses no threads, sockets or TensorFlow."""

from __future__ import annotations

import time
import urllib.parse
from dataclasses import dataclass, field

from headrace.events import WAITS_FOR_ENDS, say

Numbers = tuple[int, int, int, int]
"""Message of four numbers. To rank 0: stream, epoch, batches, flag. From rank 0: stream, epoch, batch limit, flags."""
SAY_AFTER_S = 15.0
"""Limit in seconds. If some ranks ended an epoch, and no message comes for this long, rank 0 logs which are late."""
FIRST_PATIENCE_S = 5.0
"""Limit in seconds. A rank takes its second batch when all ranks have a first batch, or after this limit. Without this
rule, one rank could take all batches of a short stream. The limit helps if other ranks never read the stream."""
ENDED = 1
"""Flag by which a rank says that it has no more batches in this epoch."""
SOME_ENDED, ALL_ENDED, STARTED = 1, 2, 4
"""Flags from rank 0. SOME_ENDED: ranks must report every batch. ALL_ENDED: the batch limit is final. STARTED: ranks may
take a second batch."""


@dataclass
class _Epoch:
    counts: list[int]
    ended: set[int] = field(default_factory=set)
    told: tuple[int, int] = (0, 0)
    began_s: float = field(default_factory=time.monotonic)
    news_s: float = field(default_factory=time.monotonic)
    said: bool = False


class EpochCounter:
    """Counts, on rank 0, how many batches each rank has had in each epoch of each stream.

    Args:
        streams: each stream's name and its `uneven` option, in the order of stream numbers; more may be added later.
    """

    def __init__(self, ranks: int, streams: list[tuple[str, str]]) -> None:
        self._ranks, self._streams = ranks, streams
        self._epochs: dict[tuple[int, int], _Epoch] = {}
        self._over: dict[int, int] = {}
        self._gone: set[int] = set()
        self._newest: dict[tuple[int, int], int] = {}

    def hear(self, rank: int, numbers: Numbers | None) -> list[Numbers]:
        """Return messages for all ranks. If `numbers` is None, `rank` is gone. If `rank` is -1, a second has passed."""
        if numbers is None:
            self._gone |= {rank} - {-1}
            self._say_waiting()
            return [answer for key in list(self._epochs) for answer in self._answer(key)]
        stream, number, batches, what = numbers
        if number <= self._over.get(stream, 0):
            return []
        epoch = self._epochs.setdefault((stream, number), _Epoch([0] * self._ranks))
        epoch.counts[rank] = max(epoch.counts[rank], batches)
        epoch.ended |= {rank} if what & ENDED else set()
        epoch.news_s = time.monotonic()
        self._newest[stream, rank] = max(self._newest.get((stream, rank), 0), number)
        return self._answer((stream, number))

    def _answer(self, key: tuple[int, int]) -> list[Numbers]:
        (stream, number), epoch = key, self._epochs[key]
        ended = epoch.ended | self._gone
        is_late = time.monotonic() - epoch.began_s >= FIRST_PATIENCE_S
        flags = STARTED * (is_late or all(n or rank in ended for rank, n in enumerate(epoch.counts)))
        flags |= SOME_ENDED * bool(ended)
        if self._streams[stream][1] == "drop":
            limit = min(epoch.counts)
            flags |= ALL_ENDED * any(epoch.counts[rank] == limit for rank in ended)
        else:
            limit = max(epoch.counts)
            flags |= ALL_ENDED * (len(ended) == self._ranks)
        if flags & ALL_ENDED and len(ended) == self._ranks:
            del self._epochs[key]
            self._over[stream] = max(number, self._over.get(stream, 0))
            self._say_ended(key, epoch, limit)
        told, epoch.told = epoch.told, (limit if flags & SOME_ENDED or self._streams[stream][1] == "drop" else 0, flags)
        return [(stream, number, *epoch.told)] if told != epoch.told else []

    def _say_ended(self, key: tuple[int, int], epoch: _Epoch, limit: int) -> None:
        name, uneven = self._streams[key[0]]
        if len(set(epoch.counts)) > 1:
            more = sum(abs(n - limit) for n in epoch.counts)
            what = {"padded" if uneven == "pad" else "dropped_at_least": more}
            say("stream_ended", stream=name, number=key[1], steps=limit, batches=sum(epoch.counts), **what)

    def _say_waiting(self) -> None:
        for (stream, number), epoch in self._epochs.items():
            behind = [rank for rank in range(self._ranks) if rank not in epoch.ended | self._gone]
            if not epoch.ended or epoch.said or time.monotonic() - epoch.news_s < SAY_AFTER_S:
                continue
            epoch.said = True
            name, waits = self._streams[stream][0], min(epoch.ended)
            newest = {rank: self._newest.get((stream, rank), 0) for rank in behind}
            apart = [f"rank {rank} in pass {each}" for rank, each in newest.items() if each != number]
            why = (
                f"rank {waits} is in pass {number}, {', '.join(apart)}: all ranks must iterate over the stream equally "
                "often; do not distribute a dataset that only one rank reads"
            )
            fields = {"why": urllib.parse.quote(why)} if apart else {}
            ranks = ",".join(map(str, behind))
            say(WAITS_FOR_ENDS, stream=name, rank=waits, batches=epoch.counts[waits], ranks=ranks, **fields)
            if apart:
                print(f"{name!r}: {why}", flush=True)
