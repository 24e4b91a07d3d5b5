"""The loaders that this process has made, in order: a rank and a feed server know each other's by their number."""

from __future__ import annotations

import collections
import json
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.context import TrainerContext
from headrace.errors import InputError

OTHER_PROCESS = (
    "the script starts processes that make loaders (torch.multiprocessing.spawn, for one): headrace starts a process "
    "for each rank, so call the training function itself, with headrace.torch.local_rank()"
)
loaders: list[Any] = []
"""In a feed server: each a `headrace.torch.dataloader.DataLoader`. A rank only counts its own."""


class Serving:
    """Whether this process is a feed server, which makes loaders and takes no batch of them."""

    on = False
    serve: Callable[[], None] | None = None
    """What a feed server does where its script would take the first batch; does not return."""
    made = shared = 0
    """Loaders that this process has made, and those of them that ranks share."""
    begun = False
    """Whether a batch was asked for."""


@dataclass(frozen=True)
class Known:
    """A loader, as feed servers know it."""

    number: int
    feeds: Sequence[str]
    """Those that make its batches."""
    about: dict[str, Any] = field(default_factory=dict)
    """`alike.description` of the first of the loaders that are this one; empty until it is made."""
    at_first_batch: dict[str, str] = field(default_factory=dict)
    """What makes its batches, as it was when the servers made their copy; empty until then."""


WITHOUT_DATA_HOSTS = "train without data hosts: --no-is_hetero --tf_data_mode local"
"""What a message advises where a script's batches cannot be made elsewhere."""
_asked = threading.Lock()
_living: weakref.WeakSet[Any] = weakref.WeakSet()
_living_lock = threading.Lock()
_before_first_batch: list[tuple[Any, tuple[Any, ...], Known]] = []
_told: collections.Counter[str] = collections.Counter()
"""How often what is told once was the case: a script may make a loader for each epoch."""
_used: collections.Counter[str] = collections.Counter()
_APART = 1_000_003
"""Between the seeds of two loaders; an epoch adds one. torch looks at 32 bits of a seed."""
_places: collections.Counter[str] = collections.Counter()
_first_places: dict[str, int] = {}
_generators: list[Any] = []


def known_to(feeds: Sequence[str], number: int, dataset: Any, made_by: tuple[Any, ...]) -> Known:
    """A loader, as feed servers know it.

    Theirs end at the first batch. One made later is served as one of before that has the very same dataset, or made by
    each rank itself.

    Args:
        number: of the loader in the script.
        made_by: what else makes its batches.
    """
    if not Serving.begun:
        _before_first_batch.append((dataset, made_by, Known(number, feeds)))
        return _before_first_batch[-1][2]
    for theirs, by, known in _before_first_batch:
        # What the servers had of a loader that the script threw away before its first batch, nobody has noted.
        if theirs is dataset and equal(by, made_by) and (known.at_first_batch or not feeds):
            return known
    _told["late"] += bool(feeds)
    if feeds and _told["late"] == 1:
        print(
            f"loader {number + 1} of the script was made after the first batch, so data hosts do not know it: each "
            "rank makes its batches itself, in num_workers processes. Make it before the first batch, and data hosts "
            "make them. (Of further loaders this is not told.)", flush=True,
        )  # fmt: skip
    return Known(number, ())


def equal(one: Any, other: Any) -> bool:
    """Whether two are the same or say so; a class of the script's may compare as it likes, and fail."""
    try:
        return one is other or bool(one == other)
    except Exception:
        return False


def times_used(kind: str) -> int:
    """How many loaders of this kind have been trained on in this process."""
    return _used[kind]


def kind(description: list[Any], generator: Any) -> str:
    """What loaders have in common that a script makes anew for each epoch: all of this, and the script's generator."""
    if generator is not None and not any(each is generator for each in _generators):
        _generators.append(generator)
    return json.dumps([description, [each is generator for each in _generators].index(True) if generator else None])


def default_seed(kind: str, generator: Any, size: int | None) -> int:
    """Another one for each use of a loader: one that is made anew for each epoch goes on in another order, as torch's.

    Another one for each of the script's loaders of one size, too, so that two over one dataset, or over two that are
    zipped, do not draw in step: the first has 0, 1, 2, … One that is made once training has begun has that of the
    first of its kind, if there was one. Loaders of other sizes do not count: one rank alone may have made such a one.

    Args:
        generator: the script's own, or None.
        size: of its dataset; None: it has none.
    """
    if generator is not None:
        return int(generator.initial_seed()) + times_used(kind)
    if not Serving.begun or kind not in _first_places:
        alike = kind if size is None else str(size)
        place = _places[alike]
        _places[alike] += 1
        _first_places.setdefault(kind, place)
    else:
        place = _first_places[kind]
    return place * _APART + times_used(kind)


def was_used(kind: str) -> None:
    """A loader of this kind is trained on: more than a first batch was taken, which one rank alone may look at."""
    _used[kind] += 1


def register(loader: Any) -> int:
    """The loader's number."""
    if Serving.on:
        loaders.append(loader)
    with _living_lock:
        _living.add(loader)
    Serving.made += 1
    return Serving.made - 1


def shared_number() -> int:
    """Of a loader that ranks share, the same on all of them: one rank alone may have made others."""
    Serving.shared += 1
    return Serving.shared - 1


def is_feed_server() -> bool:
    """Whether this process runs the script only to make batches for ranks. What a rank alone is to do, such as opening
    a port for metrics before the first batch, it leaves out here."""
    return Serving.on


def is_asked_for() -> bool:
    """In a feed server: whether it serves, in a thread of the script's perhaps."""
    return _asked.locked()


def feeds(environ: Mapping[str, str]) -> Sequence[str]:
    """HOST:PORT of the feed servers that a loader of this process reads from; none in a feed server itself.

    Raises:
        InputError: a feed server's script makes loaders in a process of its own.
    """
    found = [each for each in TrainerContext.from_environ(environ).feeds.split(",") if each]
    if Serving.on:
        return ()
    if environ.get("HEADRACE_SERVER_NAME"):
        raise InputError(OTHER_PROCESS)
    return found


def batch_asked_for() -> None:
    """To be called where batches are about to be taken: there a feed server's script stops, and all it holds is kept.

    What is unwound would close the script's files, delete its temporary folders and run its `finally` blocks.
    """
    if Serving.serve:
        _asked.acquire()  # for good: another thread of the script, or another loader, waits here for ever
        Serving.serve()
    if not Serving.begun:
        Serving.begun = True
        with _living_lock:
            living = list(_living)
        for loader in living:
            loader.note_dataset()
