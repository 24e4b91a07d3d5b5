"""How the ranks share an `IterableDataset`: its epoch is made in parts, and each rank takes the batches of some.

Rank r takes a batch of each of the parts r, r + world, … in turn, as torch's loader does with its workers. All ranks
make the same number of steps: without `drop_last`, one whose parts have ended takes its last batch again.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.errors import InputError
from headrace.torch import distributed as world
from headrace.torch.dataset_epochs import told_by_script
from headrace.torch.ends import Ends
from headrace.torch.epoch_calls import Told
from headrace.torch.fetch.map_fetcher import MOST_PARTS, Made, StreamOrder
from headrace.torch.rank_share import refuse_rank_share, refuse_shared_by_itself
from headrace.torch.sampling.epoch_plan import taken_after
from headrace.torch.sampling.rank_agreement import store_of_ranks
from headrace.torch.sources import Sources

MORE_FILES = (
    "each rank needs a part, so a file, or what the dataset shares by, of its own: write as many as there are ranks, "
    "use fewer ranks, or a dataset with __len__ and __getitem__"
)
READ_AHEAD = 2
"""Steps that all ranks have agreed on and this one has not made yet."""
LOOK_EVERY_S = 0.25
_reading: dict[threading.Thread, threading.Event] = {}
"""Threads that read ahead, and what ends them."""


class Streaming:
    """A loader's place in its dataset's parts.

    Args:
        loader: a `headrace.torch.dataloader.DataLoader`.
        shards: parts of an epoch; 0: as many as all ranks have workers, one for each rank at least.
        limit_s: how long to wait for the other ranks.
    """

    def __init__(self, loader: Any, shards: int, rank: int, world: int, limit_s: float) -> None:
        refuse_shared_by_itself(loader.dataset)
        if shards < 0 or shards > MOST_PARTS:
            raise InputError(f"shards is {shards}; expected 1 to {MOST_PARTS}")
        self._loader, self._rank, self._world, self._limit_s = loader, rank, world, limit_s
        self._set_shards(shards or world * max(loader.num_workers, 1))
        self._steps = self._iterations = 0
        self._ends: Ends | None = None

    def _set_shards(self, shards: int) -> None:
        if shards < self._world:
            raise InputError(
                f"an IterableDataset in {shards} parts cannot be shared by {self._world} ranks: {MORE_FILES}"
            )
        self.shards = shards
        self._begun = [0] * shards

    @property
    def parts(self) -> range:
        """This rank's."""
        return range(self._rank, self.shards, self._world)

    @property
    def local_workers(self) -> int:
        """Processes of this rank in local mode, one for each of its parts; 0: the only rank makes the only part."""
        alone = self.shards == 1 and not self._loader.num_workers and world.world_size() == 1
        return 0 if alone else len(self.parts)

    def begin_epoch(self) -> None:
        """The next iteration takes each part from its beginning."""
        self._begun, self._steps, self._ends = [0] * self.shards, 0, None

    def place(self, whole: bool) -> dict[str, Any]:
        """What a loader's state holds of it; `whole`: the epoch is over."""
        lengths: Mapping[int, int] = self._ends.lengths() if self._ends and not whole else {}
        taken = [0] * self.shards if whole else taken_after(self._steps, self._world, self._begun, lengths)
        return {"shards": self.shards, "batch_size": self._loader.batch_size, "taken": taken}

    def go_to(self, state: Mapping[str, Any], at_the_beginning: bool) -> None:
        """To such a place. Raises `InputError`."""
        self.begin_epoch()
        if at_the_beginning and "shards" in state:
            return
        try:
            batch_size, taken = state["batch_size"], [int(each) for each in state["taken"]]
            if len(taken) != int(state["shards"]) or min(taken) < 0:
                raise ValueError("no number for each part")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"no state of a DataLoader of an IterableDataset: {state!r:.200}") from error
        if batch_size != self._loader.batch_size:
            raise InputError(
                f"within an epoch an IterableDataset goes on with batches of the same size, {batch_size}, and not "
                f"{self._loader.batch_size}"
            )
        self._set_shards(len(taken))  # the epoch is in so many parts, whatever this run would have chosen
        self._begun = taken

    def _orders(self) -> Callable[[int, int], StreamOrder]:
        """For the iteration that begins now: the n-th batch of the lane-th of this rank's parts."""
        parts, begun, shards = self.parts, list(self._begun), self.shards
        seed, epoch, cut = self._loader.seed, self._loader.epoch, self._cut()

        def order(lane: int, number: int) -> StreamOrder:
            return StreamOrder(seed, epoch, parts[lane], shards, begun[parts[lane]] + number, *cut)

        return order

    def _cut(self) -> tuple[int, bool, list[Told]]:
        """How batches are cut. This rank says it: `batch_size // world` is another number on a feed server."""
        return self._loader.batch_size or 0, bool(self._loader.drop_last), told_by_script(self._loader.dataset)

    def batches(self, sources: Sources, number: int) -> Iterator[Made]:
        """The batches of this rank's steps.

        Args:
            number: of the loader in the script.
        """
        self._iterations += 1
        if self._world > 1 and not self._loader.made_elsewhere:  # a feed server is no rank, and knows none
            refuse_rank_share(self._loader.dataset, self._rank, self._world)
        name = f"headrace/stream{number}/{self._iterations}"
        store = store_of_ranks() if self._world > 1 else None
        if self._world > 1 and store is None:
            raise InputError("the ranks are not connected: call headrace.torch.init() before the first batch")
        source = sources.parts(self._orders(), len(self.parts))
        self._ends = ends = Ends(store, name, self._rank, self._world, self._limit_s)
        own = self._own(source, ends)
        agreed = own if store is None else _read_ahead(self._agreed(own, ends, sources), ends.closed)
        try:
            for made in agreed:
                self._steps += 1
                yield made
        finally:
            ends.closed.set()
            source.close()

    def _agreed(self, own: Iterator[Made], ends: Ends, sources: Sources) -> Iterator[Made]:
        """Batches that all ranks have, or that this rank takes again because others have more."""
        made = next(own, None)
        again: Any = None
        for step in itertools.count():
            have = ends.have(made is not None)
            too_few = self._loader.drop_last and have < self._world
            if too_few and have and not step and not any(self._begun):
                raise InputError(
                    f"an epoch has no step: {have} of {self._world} ranks have a batch, and drop_last leaves it out: "
                    f"{MORE_FILES}"
                )
            if ends.closed.is_set() or not have or too_few:
                return
            following = next(own, None) if made else None
            if made and following is None:
                again = copy.deepcopy(made)  # scripts change batches
            if made is None and again is None:
                again = self._from_before(sources)
            yield made or copy.deepcopy(again)
            made = following

    def _from_before(self, sources: Sources) -> Made:
        """A batch that was trained on before this run, for a rank whose parts had ended by then."""
        known = [part for part in (*self.parts, *range(self.shards)) if self._begun[part]]
        if not known:
            raise InputError(
                f"rank {self._rank} got no batch: its part of the IterableDataset is empty, and others are not: "
                f"{MORE_FILES}; with as many, give shards= no more than there are files"
            )
        seed, epoch, part = self._loader.seed, self._loader.epoch, known[0]
        number = self._begun[part] - 1
        source = sources.parts(
            lambda lane, step: StreamOrder(seed, epoch, part, self.shards, number + step, *self._cut()), 1
        )
        try:
            made: Made = source.next()
        finally:
            source.close()
        return made

    def _own(self, source: Any, ends: Ends) -> Iterator[Made]:
        parts = self.parts
        count, over = [0] * len(parts), [False] * len(parts)
        while not all(over):
            for lane, part in enumerate(parts):
                made = source.next()
                if made.over and not over[lane]:
                    over[lane] = True
                    ends.part_ended(part, self._begun[part] + count[lane])
                if not over[lane]:
                    count[lane] += 1
                    yield made


def _read_ahead(batches: Iterator[Made], closed: threading.Event) -> Iterator[Made]:
    """The same, taken by a thread: then the ranks agree on a step while they make the one before."""
    come: queue.Queue[Made | Exception | None] = queue.Queue(READ_AHEAD)

    def put(each: Made | Exception | None) -> None:
        while not closed.is_set():
            with contextlib.suppress(queue.Full):
                come.put(each, timeout=LOOK_EVERY_S)
                return

    def take() -> None:
        try:
            for made in batches:
                put(made)
                if closed.is_set():
                    return
            put(None)
        except Exception as error:
            put(error)

    thread, reading = threading.Thread(target=take, name="stream", daemon=True), _reading
    reading[thread] = closed
    thread.start()
    try:
        while (made := come.get()) is not None:
            if isinstance(made, Exception):
                raise made
            yield made
    finally:  # at Python's end, perhaps, when this module holds nothing any more
        reading.pop(thread, None)
        closed.set()
        thread.join(1.0)


@atexit.register
def _end_all() -> None:
    """One that is in torch, to agree with other ranks, when Python ends would abort the process."""
    for thread, closed in list(_reading.items()):
        closed.set()
        thread.join(1.0)
