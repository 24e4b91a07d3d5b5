"""Whether all ranks iterate alike over a loader that they share; told by torch.distributed's store, and nobody waits.

A rank that has made another dataset, or has begun an epoch more than the others, would train on samples that others
train on too, and nothing would fail.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
import json
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from headrace.context import TrainerContext
from headrace.errors import InputError
from headrace.torch import distributed as world
from headrace.torch import rank_changes, registry
from headrace.torch.alone import Alone
from headrace.torch.changed import refuse_changes
from headrace.torch.drawn import Drawn
from headrace.torch.fingerprint import fingerprint
from headrace.torch.roughly import same

LOOK_AT_BATCHES = frozenset({1, 2, 4, 8, 16, 32, 64, 128, 256})
"""Of an epoch: then rank 0's word is looked for, as long as it has not come."""
EACH_PART = 64
"""Of what a sampler yields by and by; before, the 1st, 2nd, 4th, … is compared."""
SEED_HINT = "a seed is to be the same on all ranks, without the rank in it, and given: WebDataset(…, seed=0), for one"
ORDER_HINT = "all ranks make the same loaders, in the same order; what one rank alone reads is a loader of torch's"
SPLIT_HINT = (
    "random_split, for one, needs a generator with a seed; a descriptor or a time is to be had in __getitem__; a mean "
    "of a shared loader's batches is to be added up over the ranks; a dataset of each rank's own takes "
    "shard_by_rank=False"
)
CHANGE_HINT = (
    "each rank has a part of the samples, so a mean of a loader's batches is another one on each rank: "
    "make it from the dataset, or add it up over the ranks (torch.distributed.all_reduce)"
)
CHANGED = "changed by epoch"


_living: weakref.WeakSet[Alike] = weakref.WeakSet()
_living_lock = threading.Lock()
"""A thread of the script's may make a loader while another one trains."""


class Alike:
    """One loader's word on this rank, compared with rank 0's.

    Args:
        number: among the loaders that the ranks share.
        shared: whether the ranks share its samples; else they may differ, and nothing is compared.
    """

    def __init__(self, number: int, shared: bool = True) -> None:
        self._prefix = f"headrace/loader{number}"
        self._open: dict[str, str] = {}
        """What is told and not yet compared."""
        self._told = self._warned = False
        self._draws: collections.Counter[int] = collections.Counter()
        """How often each epoch's samples were drawn."""
        self._launched = bool(TrainerContext.from_environ(os.environ).signal_dir.name)
        self._number, self._shared = number, shared
        self._alone = Alone(number, self._prefix)
        if shared:
            with _living_lock:
                _living.add(self)

    def made(self, loader: Any) -> None:
        """This rank has this loader; the others' may be looked at before they iterate over it."""
        if not self._told:
            self._told = self._tell("about", json.dumps(_for_ranks(loader), sort_keys=True))

    def begins(self, loader: Any) -> None:
        """This rank begins an epoch of this loader. Raises `InputError`, also where it is alone."""
        if not self._shared:
            return
        if self._launched and store_of_ranks() is None:
            raise InputError(
                "the ranks are not connected, so each would train a model of its own on its part of the samples: call "
                "headrace.torch.init(), or torch.distributed.init_process_group(), before the first batch, and put the "
                "model into DistributedDataParallel; with shard_by_rank=False each rank has all samples"
            )
        self.made(loader)
        self._alone.begins(store_of_ranks())
        if store_of_ranks() and not loader.made_elsewhere:  # else no change is allowed
            self._tell(f"{CHANGED} {loader.epoch}", json.dumps(rank_changes.changed(loader), sort_keys=True))
        self.look()

    def finished(self, loader: Any, told: int) -> None:
        """This rank has had all batches of an epoch. Tells what the script has changed meanwhile.

        Args:
            told: how often it has called `set_epoch` meanwhile; once may be for the next epoch.
        """
        self._alone.finished()
        if not (loader.made_elsewhere and loader.at_first_batch) or self._warned:
            return
        before = "warning: this pass had batches of how it was before"
        try:
            if told > 1:
                self._warned = True
                print(f"{before}: the script has called set_epoch {told} times while it took them", flush=True)
            refuse_changes(loader, dict(loader.at_first_batch))
        except InputError as error:
            self._warned = True
            print(f"{before}: {error}", flush=True)

    def moves_on(self, epoch: int, taken: int) -> None:
        """This rank goes on to the next epoch by itself, after so many batches of this one. Raises `InputError`."""
        self._tell(f"epoch {epoch}", str(taken))
        self.look()

    def draws(self, epoch: int, indices: Sequence[Any], sampler: str) -> None:
        """This rank's sampler says that these are the samples, or batches, of an epoch. Raises `InputError`."""
        if store_of_ranks() is None or not self._shared:
            return
        self._draws[epoch] += 1
        times = self._draws[epoch]
        digest, parts = hashlib.blake2b(digest_size=16), itertools.count(1)

        def hears(more: Sequence[Any]) -> None:
            digest.update(json.dumps(list(more)).encode())
            if (part := next(parts)) & (part - 1) == 0 or part % EACH_PART == 0:
                self._tell(f"samples of epoch {epoch}, {sampler}, {times}.{part}", digest.hexdigest())
                self.look()

        if isinstance(indices, Drawn):
            hears(indices.held())
            indices.heard = hears
        else:
            hears(indices)

    def look_at(self, batch: int) -> None:
        """To be called after each batch of an epoch. Looks at all loaders. Raises `InputError`."""
        if batch not in LOOK_AT_BATCHES:
            return
        with _living_lock:
            living = list(_living)
        for each in living:
            if each._open:
                each.look()
        self._alone.look_at(batch)

    def look(self) -> None:
        """Compare what rank 0 has told by now. Raises `InputError` where it differs."""
        store = store_of_ranks()
        for what, own in list(self._open.items()) if store else ():
            key = f"{self._prefix}/{what}"
            try:
                first = store.get(key).decode() if store.check([key]) else None
            except RuntimeError:  # rank 0 has ended, and its store
                return
            if first is not None:
                self._open.pop(what, None)  # another thread may look too
            if first not in (None, own) and (problem := _apart(what, own, str(first))):
                told = f"loader {self._number + 1} of those that ranks share: {problem}"
                if not what.startswith(CHANGED):
                    raise InputError(told)
                if not self._warned:
                    print(f"warning: {told}", flush=True)
                self._warned = True

    def _tell(self, what: str, said: str) -> bool:
        store = store_of_ranks()
        if store is None or not self._shared:
            return False
        if world.rank() == 0:
            with contextlib.suppress(RuntimeError):  # not every backend has a store
                store.set(f"{self._prefix}/{what}", said)
        else:
            self._open[what] = said
        return True


def store_of_ranks() -> Any:
    """None where there is nobody to compare with."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return dist.distributed_c10d._get_default_store()


def _apart(what: str, own: str, first: str) -> str:
    """Empty if it is the same but for the last digits of numbers."""
    if what == "about":
        names = differing(json.loads(own), json.loads(first))
        hint = SEED_HINT if "dataset.seed" in names.split(", ") else SPLIT_HINT
        if any(name.startswith(("size:", "seed:")) for name in names.split(", ")):
            hint = f"{ORDER_HINT}; {SPLIT_HINT}"
        told = f"rank {world.rank()} has made another dataset or loader than rank 0 (other: {names}); {hint}"
        return told if names else ""
    if what.startswith(CHANGED):
        names = differing(json.loads(own), json.loads(first))
        told = f"since the first batch, rank {world.rank()} has made of it something else than rank 0 (other: {names})"
        return f"{told}: {CHANGE_HINT}" if names else ""
    if what.startswith("samples"):
        drawn = what.rpartition(",")[0]
        return (
            f"rank {world.rank()}'s sampler gives other samples than rank 0's ({drawn}): make it of the same indices "
            "on all ranks (a shuffle of them needs a seed), and let the loader deal them to the ranks; with "
            "shard_by_rank=False each rank takes what its own sampler says"
        )
    return (
        f"rank {world.rank()} took {own} batches of {what} of a loader, and rank 0 took {first}, so they are not in "
        "the same epoch any more: have all ranks iterate alike, or call loader.set_epoch(epoch) where an epoch begins"
    )


def description(loader: Any, settled: bool) -> dict[str, Any]:
    """What must be the same on a rank and on a feed server.

    Args:
        settled: what the dataset itself writes does not count, since samples have been made of it.
    """
    made_of = fingerprint(loader.dataset, settled=settled, late=registry.Serving.begun)
    return {
        "dataset": type(loader.dataset).__qualname__,
        "size": None if loader.is_stream or not hasattr(loader.dataset, "__len__") else len(loader.dataset),
        "made_of": made_of,
        "collate_fn": fingerprint(loader.collate_fn),
        "on_error": loader.on_error,
        **({"then": made_of} if registry.Serving.begun else {}),
    }


def _for_ranks(loader: Any) -> dict[str, Any]:
    """What must be the same on all ranks; a feed server is alone, and may have been given other batches."""
    sampler = type(loader.samples.own_sampler).__qualname__
    return {**loader.about(), "batch_size": loader.batch_size, "drop_last": bool(loader.drop_last),
            "seed": loader.seed, "sampler": sampler, "shards": loader.shards}  # fmt: skip


def differing(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What two loaders' descriptions have different, for people to read; empty if nothing."""
    names = []
    for name in sorted({*own, *other}):
        ours, theirs = own.get(name), other.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            of = "dataset" if name in ("made_of", "then") else name
            names += [f"{of}.{each}" for each in sorted({*ours, *theirs}) if not same(ours.get(each), theirs.get(each))]
        elif ours != theirs:
            names.append(f"{name}: {ours!r:.60} and {theirs!r:.60}")
    return ", ".join(list(dict.fromkeys(names))[:5])
