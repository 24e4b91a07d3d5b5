"""Let ranks agree on the order of each epoch and on the end of streams, through torch.distributed's store.

When an epoch begins, rank 0 publishes its loader's configuration and order; other ranks compare their loaders with it.
Without the comparison, ranks that differ would silently train on some samples twice.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.utils.data import Subset

from headrace.errors import DeadlineError, InputError

FIRST_POLL_S, LONGEST_POLL_S = 0.0005, 0.02
LAST_STEP_S = 10.0
"""Limit on the seconds that rank 0 waits for the other ranks after a stream has ended."""
STATES_KEPT = 8
"""Number of latest states to keep for each shard. Rank 0 saves checkpoints, and may be some steps behind this rank."""
_ENDED = 1 << 24
"""A rank without a batch adds this to a step's counter, a rank with a batch adds 1: one number holds both counts."""
_HINTS = {
    "epoch": "have all ranks iterate over the same epochs, and call loader.set_epoch(epoch) where an epoch begins",
    "order": "make the sampler from the same indices and the same seed on all ranks. If samplers are to differ, set "
    "shard_by_rank=False: each rank then takes what its own sampler yields",
    "subset": "give random_split a generator with a seed",
}
_ALIKE = "make the same loaders on all ranks, in the same order, from the same data"


def loader_config(loader: Any) -> dict[str, Any]:
    """Return the facts about a loader that must be the same on all ranks and feed servers."""
    dataset = loader.dataset
    length = None if loader.is_stream or not hasattr(dataset, "__len__") else len(dataset)
    config = {"dataset": type(dataset).__qualname__, "length": length, "on_error": loader.on_error}
    digests = []
    while isinstance(dataset, Subset):  # random_split without a seed splits differently on each host
        digests.append(order_digest(dataset.indices))
        dataset = dataset.dataset
    return config | ({"subset": digests} if digests else {})


def differences(own: Mapping[str, Any], other: Mapping[str, Any], who: str) -> str:
    """Return how two configurations differ, and advice; "" if they do not. `who` names the owner of `other`."""
    names = [name for name in own if own[name] != other.get(name)]
    if not names:
        return ""
    told = ", ".join(f"{name} is {own[name]!r:.80} here and {other.get(name)!r:.80} on {who}" for name in names)
    return f"{told}: {_HINTS.get(names[0], _ALIKE)}"


def compare_with_rank_0(store: Any, iteration: str, rank: int, limit_s: float, own: Mapping[str, Any]) -> None:
    """Publish rank 0's values for an iteration. Every other rank waits for them, and compares them with its own.

    Raises:
        InputError: the values differ.
        DeadlineError: rank 0 has not begun the iteration in time.
    """
    key = f"headrace/{iteration}"
    if rank == 0:
        store.set(key, json.dumps(own))
        return
    if not _poll(lambda: store.check([key]), limit_s):
        raise DeadlineError(f"within {limit_s:g} s, rank 0 did not begin {iteration}: iterate over it on all ranks")
    if told := differences(own, json.loads(store.get(key)), "rank 0"):
        raise InputError(f"{iteration}, on rank {rank}: {told}")


def order_digest(order: Sequence[Any]) -> str:
    """Return a digest of indices, such as those that a sampler has yielded for an epoch."""
    try:
        data = memoryview(array.array("q", order))
    except (TypeError, OverflowError):  # texts, tuples, batches
        data = memoryview(json.dumps(list(order), default=str).encode())
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _poll(done: Callable[[], bool], limit_s: float) -> bool:
    """Wait until `done()` is true. Return False if that takes longer than `limit_s`."""
    pause_s, deadline = FIRST_POLL_S, time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_POLL_S)
    return True


class StreamEnd:
    """Agreement of all ranks on the step at which a stream's epoch ends. No rank knows this step beforehand.

    Before a rank trains on a step's batch, it says whether it has a batch for the next step.

    Args:
        store: the store that all ranks share; None if there is only one rank.
        name: name of the iteration, the same on all ranks.
        limit_s: seconds to wait for the other ranks.
    """

    def __init__(self, store: Any, name: str, rank: int, world: int, limit_s: float) -> None:
        self._store = dist.HashStore() if store is None else store
        self._name, self._rank, self._world, self._limit_s = name, rank, world, limit_s
        self._states: dict[int, list[tuple[int, Any]]] = {}
        self._said = self._step = 0

    def shard_ended(self, shard: int, batches: int) -> None:
        """Publish that a shard of this rank has ended after this number of batches."""
        self._store.set(f"{self._name}/end/{shard}", str(batches))

    def publish_state(self, shard: int, batches: int, state: Any) -> None:
        """Publish the state that the dataset has after this number of a shard's batches."""
        states = self._states.setdefault(shard, [])
        states.append((batches, state))
        del states[:-STATES_KEPT]
        if self._rank != 0:  # for rank 0, which saves checkpoints
            self._store.set(f"{self._name}/state/{shard}", json.dumps(states))

    def state_of(self, shard: int, batches: int) -> Any:
        """Return the state that any rank published for a shard after this number of batches; None if there is none."""
        key = f"{self._name}/state/{shard}"
        states: Sequence[Any] = self._states.get(shard, ())
        if not states and self._store.check([key]):
            states = json.loads(self._store.get(key))
        return next((state for number, state in states if number == batches), None)

    def lengths(self, shards: int) -> Mapping[int, int]:
        """Return the number of batches of each ended shard. This includes the shards of all ranks."""
        keys = {shard: f"{self._name}/end/{shard}" for shard in range(shards)}
        return {shard: int(self._store.get(key)) for shard, key in keys.items() if self._store.check([key])}

    def say(self, has_batch: bool) -> None:
        """Say whether this rank has a batch for the next step. Raises `RuntimeError` if the store has failed."""
        self._said = self._store.add(f"{self._name}/{self._step}", 1 if has_batch else _ENDED)
        self._step += 1

    def ranks_with_batch(self) -> int:
        """Wait until all ranks have said whether they have a batch for the step; return how many have one.

        Raises:
            DeadlineError: a rank has not reached this step in time.
            RuntimeError: the store has failed, so it is unknown whether the epoch has ended.
        """
        if not _poll(self._all_said, self._limit_s):
            raise DeadlineError(
                f"only {self._said % _ENDED + self._said // _ENDED} of {self._world} ranks have come to step "
                f"{self._step} of a loader within {self._limit_s:g} s: iterate over it equally often on every rank"
            )
        if self._rank == 0 and self._step > 1:  # no rank needs the previous step's key any more
            with contextlib.suppress(RuntimeError, NotImplementedError):  # not every store can delete
                self._store.delete_key(f"{self._name}/{self._step - 2}")
        return self._said % _ENDED

    def _all_said(self) -> bool:
        if self._said % _ENDED + self._said // _ENDED < self._world:
            self._said = int(self._store.add(f"{self._name}/{self._step - 1}", 0))
        return self._said % _ENDED + self._said // _ENDED >= self._world

    def leave(self) -> None:
        """Publish that this rank has seen the stream's end. Rank 0 hosts the store, so it waits for the other ranks."""
        key = f"{self._name}/left"
        self._store.add(key, 1)
        if self._rank == 0:
            _poll(lambda: int(self._store.add(key, 0)) >= self._world, LAST_STEP_S)
