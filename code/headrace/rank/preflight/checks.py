"""Time and check MPI: messages between two ranks, a broadcast, an allreduce, and a gather."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.rank.preflight.meeting import Meeting, PreflightError

PING_BYTES, LOAD_BYTES, GATHERED_BYTES, REDUCED_BYTES = 8, 4 << 20, 64, 16 << 20
"""Message sizes in bytes. `LOAD_BYTES` is for bandwidth and broadcast. `GATHERED_BYTES` is small, as metrics are."""
PINGS, LOADS, ROUNDS = 200, 12, 3
ENOUGH_S = 0.4
"""Seconds after which two ranks stop repeating a message, even if `PINGS` or `LOADS` is not reached."""
ALL_PAIRS_HOSTS = 8
"""Up to this number of hosts, all pairs are tested; with more, only neighbours and the pairs of the first host."""
NAMED_PAIRS = 3
"""Largest number of pairs of ranks that a message names."""
PING_TAG = 20

Prepared = tuple[Callable[[], Any], Callable[[], Any]]
"""Functions that begin a collective and check its result. They keep the collective's buffers alive; MPI does not."""
Prepare = Callable[[], Prepared]


def links(hosts: Sequence[str]) -> list[list[tuple[int, int]]]:
    """Return the pairs of ranks to test. The pairs in an inner list are tested at the same time.

    Each of the first lists holds one pair, between two hosts. In the later lists, both ranks of a pair share a host.

    Args:
        hosts: the host of each rank.
    """
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    firsts = [here[0] for here in ranks.values()]
    pairs = list(itertools.combinations(firsts, 2))
    if len(firsts) > ALL_PAIRS_HOSTS:
        near = {(0, rank) for rank in firsts[1:]} | set(itertools.pairwise(firsts))
        pairs = [pair for pair in pairs if pair in near]
    within = [
        [(here[0], here[place]) for here in ranks.values() if place < len(here)]
        for place in range(1, max(map(len, ranks.values())))
    ]
    return [[pair] for pair in pairs] + within


def try_links(meeting: Meeting, pairs: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Exchange messages in each pair; return each pair's best one-way latency in s and best bandwidth in bytes/s."""
    named = ", ".join(f"{meeting.name(a)} with {meeting.name(b)}" for a, b in pairs[:NAMED_PAIRS])
    more = len(pairs) - NAMED_PAIRS
    what = f"messages of {named}" + (f" and {more} more pairs" if more > 0 else "")
    begins = dict(pairs)
    others = {**begins, **{b: a for a, b in pairs}}

    def exchange() -> tuple[float, float]:
        other, is_first = others[meeting.rank], meeting.rank in begins
        ping_s = _there_and_back(meeting, other, is_first, PING_BYTES, PINGS, what)
        load_s = _there_and_back(meeting, other, is_first, LOAD_BYTES, LOADS, what)
        return ping_s / 2, 2 * LOAD_BYTES / load_s

    made = meeting.stage(what, others, exchange)
    return [made.get(a, (0.0, 0.0)) for a, _ in pairs]


def _there_and_back(meeting: Meeting, other: int, is_first: bool, size: int, times: int, what: str) -> float:
    """Return the shortest round trip in seconds. The first byte of a message says whether it is the last message."""
    comm = meeting.comm
    sent, got = _pattern(size), np.empty(size, np.uint8)
    best, started = float("inf"), time.monotonic()
    for number in range(times):
        if is_first:
            sent[0], sent[1] = number == times - 1 or time.monotonic() - started > ENOUGH_S, number % 256
            began = time.monotonic()
            meeting.wait([comm.Isend(sent, other, PING_TAG), comm.Irecv(got, other, PING_TAG)], what, rest=False)
            best = min(best, time.monotonic() - began)
        else:
            meeting.wait([comm.Irecv(got, other, PING_TAG)], what, rest=False)
            meeting.wait([comm.Isend(got, other, PING_TAG)], what, rest=False)
            sent[0], sent[1] = got[0], number % 256
        if not np.array_equal(sent, got):
            # The other rank may wait for a next message, and rank 0 for the other rank: this rank must end all ranks.
            raise PreflightError(meeting.rank, f"{what}: the bytes that arrived differ from those sent", is_final=True)
        if sent[0]:
            break
    return best


def _pattern(size: int) -> Any:
    return (np.arange(size, dtype=np.uint32) % 251).astype(np.uint8)


def try_collectives(meeting: Meeting) -> dict[str, tuple[int, float]]:
    """Time all collectives. Rank 0 returns a dict from name to (bytes per rank, best seconds), other ranks {}."""
    found = {}
    for name, size, prepare in _collectives(meeting):
        times = meeting.stage(name, range(meeting.size), functools.partial(_rounds, meeting, name, prepare))
        if times:
            found[name] = (size, min(max(rounds) for rounds in zip(*times.values(), strict=True)))
    return found


def _rounds(meeting: Meeting, name: str, prepare: Prepare) -> list[float]:
    """Return the seconds of each round of a collective. Raises `PreflightError` if a value is wrong."""
    seconds, right = [], True
    for _ in range(ROUNDS):
        begin, is_right = prepare()
        meeting.wait([meeting.comm.Ibarrier()], name, rest=False)
        began = time.monotonic()
        meeting.wait([begin()], name, rest=False)
        seconds.append(time.monotonic() - began)
        right &= bool(is_right())
    if not right:
        raise PreflightError(meeting.rank, f"{name}: {meeting.name(meeting.rank)} received wrong values")
    return seconds


def _collectives(meeting: Meeting) -> list[tuple[str, int, Prepare]]:
    comm, rank, size = meeting.comm, meeting.rank, meeting.size
    mean = (size + 1) / 2  # the mean of 1 … size, the values that the ranks hold

    def broadcast() -> Prepared:
        right = np.arange(LOAD_BYTES // 4, dtype=np.float32)
        values = right.copy() if rank == 0 else np.zeros_like(right)
        return lambda: comm.Ibcast(values, 0), lambda: np.array_equal(values, right)

    def gather() -> Prepared:
        mine = np.full(GATHERED_BYTES // 8, rank + 1, np.float64)
        gathered = np.zeros((size, mine.size)) if rank == 0 else None
        return lambda: comm.Igather(mine, gathered, 0), lambda: gathered is None or (gathered.mean(0) == mean).all()

    def allreduce() -> Prepared:
        mine = np.full(REDUCED_BYTES // 4, rank + 1, np.float32)
        total = np.zeros_like(mine)
        return lambda: comm.Iallreduce(mine, total), lambda: (total / size == mean).all()

    return [
        ("broadcast", LOAD_BYTES, broadcast),
        ("gather and average", GATHERED_BYTES, gather),
        ("allreduce", REDUCED_BYTES, allreduce),
    ]
