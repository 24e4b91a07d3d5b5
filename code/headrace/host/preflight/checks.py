"""What is tried: messages between two ranks, broadcast, gather and average, allreduce; checked and timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace.host.preflight.meeting import Meeting, PreflightError

PING_BYTES, LOAD_BYTES, REDUCED_BYTES = 8, 4 << 20, 16 << 20
"""A message that only tests latency; one that tests bandwidth; gradients of a small network."""
PINGS, LOADS, ROUNDS = 200, 12, 3
ENOUGH_S = 0.4
"""No kind of message is repeated for longer than this."""
ALL_PAIRS_HOSTS = 8
"""Up to so many hosts each pair is tried; of more, neighbours and everybody's link to the first host."""
PING_TAG = 20

Begun = tuple[Any, tuple[Any, ...], Callable[..., bool]]
"""A request; its buffers, which must live until it is done, and mpi4py does not hold them; whether they are right."""
Begin = Callable[[], Begun]


def links(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """The pairs of ranks to try, given each rank's host: between hosts, then within each."""
    first = {host: rank for rank, host in reversed(list(enumerate(hosts)))}
    firsts = sorted(first.values())
    pairs = list(itertools.combinations(firsts, 2))
    if len(firsts) > ALL_PAIRS_HOSTS:
        near = {(0, rank) for rank in firsts[1:]} | set(itertools.pairwise(firsts))
        pairs = [pair for pair in pairs if pair in near]
    return pairs + [(first[host], rank) for rank, host in enumerate(hosts) if rank != first[host]]


def try_link(meeting: Meeting, pair: tuple[int, int]) -> tuple[float, float]:
    """Messages there and back between two ranks: the best latency of a way in s, the best bandwidth in bytes/s."""
    what = f"messages between {meeting.name(pair[0])} and {meeting.name(pair[1])}"

    def exchange() -> tuple[float, float]:
        other = pair[1] if meeting.rank == pair[0] else pair[0]
        begins = meeting.rank == pair[0]
        ping_s = _there_and_back(meeting, other, begins, PING_BYTES, PINGS, what)
        load_s = _there_and_back(meeting, other, begins, LOAD_BYTES, LOADS, what)
        return ping_s / 2, 2 * LOAD_BYTES / load_s

    return meeting.stage(what, pair, exchange).get(pair[0], (0.0, 0.0))


def _there_and_back(meeting: Meeting, other: int, begins: bool, size: int, times: int, what: str) -> float:
    """The shortest time in s; the last message says that it is the last."""
    sent, got = np.empty(size, np.uint8), np.empty(size, np.uint8)
    best, started = float("inf"), time.monotonic()
    for number in range(times):
        last = number == times - 1 or time.monotonic() - started > ENOUGH_S
        if begins:
            _fill(sent, number, last)
            began = time.monotonic()
            _swap(meeting, other, sent, got, what)
            best = min(best, time.monotonic() - began)
        else:
            meeting.wait([meeting.comm.Irecv(got, other, PING_TAG)], what, rest=False)
            last = bool(got[0])
            _fill(sent, number, last)
            meeting.wait([meeting.comm.Isend(got, other, PING_TAG)], what, rest=False)
        if not np.array_equal(sent, got):
            raise PreflightError(meeting.rank, f"{what}: other bytes arrived than were sent")
        if last:
            break
    return best


def _swap(meeting: Meeting, other: int, sent: Any, got: Any, what: str) -> None:
    comm = meeting.comm
    meeting.wait([comm.Isend(sent, other, PING_TAG), comm.Irecv(got, other, PING_TAG)], what, rest=False)


def _fill(buffer: Any, number: int, last: bool) -> None:
    """Bytes that differ from place to place and from message to message."""
    buffer[:] = np.arange(number, number + buffer.size, dtype=np.uint64) % 251
    buffer[0] = last


def try_collectives(meeting: Meeting) -> dict[str, tuple[int, float]]:
    """Each collective's bytes per rank and seconds (of its slowest rank, in its best round); on rank 0."""
    found = {}
    for name, size, work in _collectives(meeting):
        times = meeting.stage(name, range(meeting.size), _timed(meeting, name, work))
        if times:
            found[name] = (size, min(max(rounds) for rounds in zip(*times.values(), strict=True)))
    return found


def _timed(meeting: Meeting, name: str, work: Begin) -> Any:
    def rounds() -> list[float]:
        seconds = []
        for _ in range(ROUNDS):
            began = time.monotonic()
            request, buffers, is_right = work()
            meeting.wait([request], name, rest=False)
            seconds.append(time.monotonic() - began)
            if not is_right(*buffers):
                raise PreflightError(meeting.rank, f"{name}: {meeting.name(meeting.rank)} has wrong values")
        return seconds

    return rounds


def _collectives(meeting: Meeting) -> list[tuple[str, int, Begin]]:
    comm, rank, size = meeting.comm, meeting.rank, meeting.size
    mean = (size + 1) / 2  # of 1 … size, which is what the ranks hold

    def broadcast() -> Begun:
        right = np.arange(LOAD_BYTES // 4, dtype=np.float32)
        values = right.copy() if rank == 0 else np.zeros_like(right)
        return comm.Ibcast(values, 0), (values,), lambda got: np.array_equal(got, right)

    def gather() -> Begun:
        mine = np.full(PING_BYTES, rank + 1, np.float64)
        all_of_them = np.zeros((size, mine.size)) if rank == 0 else None
        request = comm.Igather(mine, all_of_them, 0)
        return request, (mine, all_of_them), lambda _, got: got is None or bool((got.mean(0) == mean).all())

    def allreduce() -> Begun:
        mine = np.full(REDUCED_BYTES // 4, rank + 1, np.float32)
        total = np.empty_like(mine)
        return comm.Iallreduce(mine, total), (mine, total), lambda _, got: bool((got / size == mean).all())

    return [
        ("broadcast", LOAD_BYTES, broadcast),
        ("gather and average", 8 * PING_BYTES, gather),
        ("allreduce", REDUCED_BYTES, allreduce),
    ]
