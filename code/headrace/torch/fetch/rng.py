"""Seeding of random generators, and calls of `dataset.set_epoch`.

Random draws for a sample depend on the seed, the epoch, and the sample's position in the epoch, not on the process.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import random
import types
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

# Values of the argument `place` of `sample_seed`. They are larger than any sample's place in its batch.
COLLATE = 1 << 40
SAMPLER = 1 << 41
WORKER = 1 << 42
RANK = 1 << 43
SHARD_BEGINS = 1 << 44
SHARD = 1 << 45
SHARD_COLLATE = 1 << 46
SET_EPOCH = 1 << 47

_MASK = (1 << 64) - 1
_MOST_OBJECTS, _MOST_ENTRIES = 20_000, 200
_DRAWING = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
GLOBAL = (random._inst, np.random.mtrand._rand, torch.default_generator)  # type: ignore[attr-defined]
"""The CPU generators that Python, NumPy and torch use by default."""
_HOLDING_NONE = (str, bytes, bytearray, int, float, complex, type(None), type, types.ModuleType, types.FunctionType,
                 np.ndarray, torch.Tensor)  # fmt: skip


def sample_seed(seed: int, epoch: int, position: int, place: int = 0) -> int:
    """Return the 64-bit seed for the random draws of one sample, or for other draws, such as those of `collate_fn`.

    Args:
        position: the sample's position in the epoch. With a batch sampler, the position of the sample's batch.
        place: for a sample of a map-style dataset, the place in its batch if a batch sampler makes the batch, else 0.
            For all other draws, a constant such as `COLLATE`.
    """
    mixed = seed & _MASK
    for number in (epoch, position, place):
        mixed = _splitmix64(mixed ^ _splitmix64(number & _MASK))
    return mixed


def _splitmix64(value: int) -> int:
    # Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014.
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_all(seed: int, own: Mapping[str, Any] | None = None) -> None:
    """Seed the global CPU generators of Python, NumPy and torch, and the generators in `own` (from `generators_of`)."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    for path, each in (own or {}).items():
        mixed = (seed + zlib.crc32(path.encode(errors="replace"))) & 0x7FFF_FFFF_FFFF_FFFF
        if isinstance(each, torch.Generator):
            each.manual_seed(mixed)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = type(each.bit_generator)(mixed).state
        else:
            each.seed(mixed if isinstance(each, random.Random) else mixed & 0xFFFF_FFFF)


@contextlib.contextmanager
def kept(generators: Iterable[Any], within: list[Any] | None = None) -> Iterator[None]:
    """Restore the state of these generators at the end of the context, so that the script's draws do not change.

    Args:
        within: list that carries the generators' states from the end of one context to the start of the next, if code
            such as a sampler runs in several contexts. Pass an empty list to the first context.
    """
    before = [(each, _state(each)) for each in generators]
    try:
        for (each, _), state in zip(before, within or (), strict=False):
            _set_state(each, state)
        yield
    finally:
        if within is not None:
            within[:] = [_state(each) for each, _ in before]
        for each, state in before:
            _set_state(each, state)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def generators_of(*holders: Any) -> dict[str, Any]:
    """Return the random generators that these objects hold, at any depth. Keys are paths, such as `0.transform.rng`."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    waiting = collections.deque((str(place), each) for place, each in enumerate(holders))
    while waiting and len(seen) < _MOST_OBJECTS:
        path, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, _DRAWING):
            if _can_be_seeded(value):
                found[path] = value
            continue
        waiting.extend(
            (f"{path}.{name}", each)
            for name, each in itertools.islice(_attributes(value), _MOST_ENTRIES)
            if not isinstance(each, _HOLDING_NONE)
        )
    return found


def _attributes(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        return iter(list(value.items()))
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return iter(list(enumerate(value)))
    if isinstance(value, functools.partial):
        return iter(enumerate((value.func, *value.args, *value.keywords.values())))
    if isinstance(value, (types.MethodType, types.BuiltinMethodType)):
        return iter([("", value.__self__)])
    return iter(list(getattr(value, "__dict__", {}).items()))


def _can_be_seeded(generator: Any) -> bool:
    """Return whether workers may seed a generator. They must not seed a global one, a SystemRandom or one on a GPU."""
    if isinstance(generator, random.SystemRandom) or any(generator is each for each in GLOBAL):
        return False
    if isinstance(generator, torch.Generator):
        return generator.device.type == "cpu"
    # RandomState.seed works only with MT19937.
    mersenne = np.random.MT19937
    return not isinstance(generator, np.random.RandomState) or isinstance(generator._bit_generator, mersenne)  # type: ignore[attr-defined]


_epochs: dict[int, tuple[weakref.ref[Any], tuple[int, int]]] = {}
"""Latest seed and epoch of each dataset in this process, by the dataset's id."""


def set_epoch(dataset: Any, seed: int, epoch: int) -> bool:
    """Call `set_epoch` of the dataset. If it has none, call `set_epoch` of the datasets inside. Return whether any ran.

    A dataset that is already at this seed and epoch is skipped. Random draws in `set_epoch` are equal in all processes.
    """
    called = False
    for each in with_set_epoch(dataset):
        known = _epochs.get(id(each))
        if known and known[0]() is each and known[1] == (seed, epoch):
            continue
        begin_epoch(each, seed, epoch)
        with contextlib.suppress(TypeError):  # `each` allows no weak reference: `set_epoch` runs for each batch
            _epochs[id(each)] = weakref.ref(each), (seed, epoch)
        called = True
    return called


def begin_epoch(dataset: Any, seed: int, epoch: int) -> None:
    """Seed random generators, call `set_epoch` of the dataset or of datasets inside it, and restore the generators."""
    for each in with_set_epoch(dataset):
        own = generators_of(each)
        with kept((*GLOBAL, *own.values())):
            seed_all(sample_seed(seed, epoch, 0, SET_EPOCH), own)
            each.set_epoch(epoch)


def with_set_epoch(dataset: Any) -> list[Any]:
    """Return the dataset if it has a `set_epoch` method, or else the datasets inside it that have this method."""
    found, seen, waiting = [], {id(dataset)}, collections.deque([dataset])
    while waiting:
        each = waiting.popleft()
        if callable(getattr(each, "set_epoch", None)):
            found.append(each)
            continue
        for inside in _inside(each):
            if id(inside) not in seen:
                seen.add(id(inside))
                waiting.append(inside)
    return found


def _inside(dataset: Any) -> list[Any]:
    found: list[Any] = []
    for value in getattr(dataset, "__dict__", {}).values():
        many = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        first = list(itertools.islice(many, _MOST_ENTRIES))  # there may be a million labels
        listed = many if first and isinstance(first[0], Dataset) else first
        found += [each for each in listed if isinstance(each, Dataset)]
    return found
