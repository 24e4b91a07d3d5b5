"""`headrace.torch.DataLoader`: torch's, whose batches come from feed servers where the job has them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Generator, Iterator
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader

from headrace import progress
from headrace.errors import InputError
from headrace.settings import STALL_TIMEOUT_VARIABLE
from headrace.torch import distributed as world
from headrace.torch import given, rank_changes, registry, waiting
from headrace.torch.changed import as_it_is, refuse_changes
from headrace.torch.fetch.iterable_fetcher import StreamMaker, stream_maker
from headrace.torch.fetch.map_fetcher import Maker, tell_skipped
from headrace.torch.fingerprint import fingerprint
from headrace.torch.indices import Index
from headrace.torch.iteration import Iteration
from headrace.torch.rank_batches import RankBatches
from headrace.torch.remade import look_soon
from headrace.torch.samples import Samples
from headrace.torch.sampling.rank_agreement import Alike, description
from headrace.torch.sampling.samplers import check_sampler
from headrace.torch.sampling.stream_shards import Streaming
from headrace.torch.set_by_script import SetByScript
from headrace.torch.sources import Sources

WAIT_SHARE = 0.9
"""Of `stall_timeout_s`, for a batch: it is to be named before the watchdog ends the job."""
DEFAULT_STALL_TIMEOUT_S = 600.0
_batches_taken = 0
progress.add_counter(lambda: _batches_taken)


class DataLoader(TorchDataLoader[Any]):
    """torch's DataLoader with its own arguments and meaning, for one rank of a job.

    Where the job has feed servers, those make the batches; else this process and its `num_workers`. Either way they are
    the same to the last bit: an epoch's order and each sample's random draws (of torch's, NumPy's and Python's global
    generators) follow from `seed`, the epoch and the sample's place in it, whoever makes the batch.

    The ranks share each epoch, as with `DistributedSampler`: every sample once, the same number of steps on all ranks,
    with up to `world − 1` samples twice, or with `drop_last` some left out. A sampler of one's own is evaluated
    by each rank from the same seed; you may keep a `DistributedSampler`, which then says seed, shuffle and epoch.

    Args:
        dataset: map-style: it has `__getitem__` and `__len__`. Or an `IterableDataset`: each epoch is made in parts,
            and `get_worker_info` tells it which of how many, as in torch's workers.
        num_workers: processes that make batches. In local mode this rank's; 0: this process makes them. A feed server
            has the largest of all its loaders; where one is 0, one for each of its host's processors.
        timeout: seconds that a batch may take to be made; 0: on feed servers 0.8 `stall_timeout_s`, else without end.
        seed: of order and random draws; by default that of `generator`, else another for each loader of the script. A
            loader that is made anew has another one, too.
        on_error: `raise`: a sample that raises ends the job. `skip`: it is left out of its batch, and counted.
        shard_by_rank: False: this rank takes all samples, or what its own sampler says, whatever the others do.
        shards: parts of an `IterableDataset`'s epoch, which the order follows from; by default `num_workers` for each
            rank, one at least. Each has a process of its own; not so the only one of an only rank without workers.

    Attributes:
        rank: which part of the samples this loader takes.
        skipped: samples that were left out of batches that this rank has taken.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, sampler: Any = None,
                 batch_sampler: Any = None, num_workers: int = 0, *, seed: int | None = None, on_error: str = "raise",
                 shard_by_rank: bool = True, shards: int = 0, **torchs: Any) -> None:  # fmt: skip
        self.rank, self._world = (world.rank(), world.world_size()) if shard_by_rank else (0, 1)
        self.is_stream = isinstance(dataset, IterableDataset)
        given.check(self.is_stream, on_error, shards)
        scripts = batch_sampler
        if shard_by_rank:
            how = batch_size, shuffle, sampler, batch_sampler, torchs.pop("drop_last", False)
            made = given.how_batches_are_made(dataset, self._world, *how)
            batch_size, sampler, batch_sampler, torchs["drop_last"] = made
        super().__init__(dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, **torchs)
        if self._world > 1 and not self.is_stream:
            check_sampler(sampler if batch_sampler is None else batch_sampler, self._world, dataset)
        self._limit_s = WAIT_SHARE * float(os.environ.get(STALL_TIMEOUT_VARIABLE) or DEFAULT_STALL_TIMEOUT_S)
        self._streaming = Streaming(self, shards, self.rank, self._world, self._limit_s) if self.is_stream else None
        self.on_error, self.skipped = on_error, 0
        self.samples = Samples(self, self._world, sampler is not None, batch_sampler is not None)
        if not self.is_stream and batch_sampler is None and isinstance(self.batch_sampler, BatchSampler):
            self.__dict__["batch_sampler"] = RankBatches(self, self.batch_sampler, scripts)  # torch forbids it
        self._position = self._taken = self._open_iterations = 0
        self.begun = self._whole = False  # this epoch
        self._first_epoch: int | None = None
        self._made, self.own_collate_fn = registry.register(self), self.collate_fn
        made_by = (self.collate_fn, self.worker_init_fn, on_error, self.batch_sampler is None)
        known = registry.known_to(registry.feeds(os.environ), self._made, dataset, made_by)
        self.number, self._feeds, self.at_first_batch = known.number, known.feeds, known.at_first_batch
        self._about = known.about  # of one made anew, as it was before
        self._about.update({} if self._about else description(self, rank_changes.may_have_made(dataset)))
        as_made = {name: told for name, told in self._about.items() if name != "then"}
        self._kind = registry.kind([as_made, batch_size, type(self.sampler).__qualname__], self.generator)
        default = registry.default_seed(self._kind, self.generator, self._about["size"])
        self.seed, self.seeded = int(default if seed is None else seed), seed is not None
        self._set_by_script = SetByScript(self)
        self.epoch = self._set_by_script.first
        self._shared_number = registry.shared_number() if self._world > 1 else 0
        self._alike = Alike(self._shared_number, shared=self._world > 1)
        waiting.watch(world.rank(), world.world_size())
        self._sources = Sources(self, self._feeds, self._limit_s)
        if registry.Serving.begun:
            self.note_dataset()

    def note_dataset(self) -> None:
        """The script is about to take its first batch: feed servers have the dataset as it is now."""
        if "then" not in self._about:
            self._about["then"] = fingerprint(self.dataset, settled=True)
        self.own_collate_fn = self.collate_fn  # which the script may have set on the loader
        if (self._feeds or self._world > 1) and not self.at_first_batch:
            self.at_first_batch.update(as_it_is(self) if self._feeds else rank_changes.as_it_is(self))
        self._alike.made(self)

    @property
    def made_elsewhere(self) -> bool:
        """Whether feed servers make the batches."""
        return bool(self._feeds)

    def maker(self) -> Maker | StreamMaker:
        """What makes this loader's batches."""
        if self.is_stream:
            return stream_maker(self)
        return Maker(self.dataset, self.collate_fn, self.batch_sampler is not None, self.on_error)

    @property
    def shards(self) -> int:
        """Parts of an `IterableDataset`'s epoch; 0: a map-style dataset has none."""
        return self._streaming.shards if self._streaming else 0

    @property
    def local_workers(self) -> int:
        """Processes of this rank that make its batches in local mode; 0: it makes them itself."""
        return self._streaming.local_workers if self._streaming else self.num_workers

    def about(self) -> dict[str, Any]:
        """What must be the same on a rank and on a feed server, as it was when the loader was made."""
        return self._about

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is over this epoch, which has an order of its own; without it, over the next one."""
        if self.samples.dealt:
            self.sampler.set_epoch(epoch)
            self._set_by_script.seen()
        if epoch != self.epoch or self.begun:
            self.epoch, self._position, self.begun, self._whole = int(epoch), 0, False, False
            if self._streaming:
                self._streaming.begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, for `load_state_dict` on any number of ranks."""
        place = self._streaming.place(self._whole) if self._streaming else {}
        if self._whole:
            return {"seed": self.seed, "epoch": self.epoch + 1, "position": 0, **place}
        return {"seed": self.seed, "epoch": self.epoch, "position": self._position, **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on there. Raises `InputError` for what is no state of a loader."""
        try:
            seed, epoch, position = (int(state[name]) for name in ("seed", "epoch", "position"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"no state of a DataLoader: {state!r:.200}") from error
        self.set_epoch(epoch)
        if self._streaming:
            self._streaming.go_to(state, at_the_beginning=position == 0)
        self.seed, self.epoch, self._position, self.begun, self._whole = seed, epoch, position, False, False

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank; of an `IterableDataset` with a length, about so many."""
        return -(-super().__len__() // self._world) if self.is_stream else self.samples.count()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        registry.batch_asked_for()
        return Iteration(self._streamed(self._streaming) if self._streaming else self._batches(), self)

    def _begin(self) -> None:
        """An iteration begins: over which epoch, and whether over the same as on the other ranks."""
        if (set_there := self._set_by_script.since()) is not None:
            self.set_epoch(set_there)
        elif self.begun:
            if not self._open_iterations:  # else a thread may have read ahead, as far as it came
                self._alike.moves_on(self.epoch, self._taken)
            self.epoch, self._position = self.epoch + 1, 0
            if self._streaming:
                self._streaming.begin_epoch()
        self._set_by_script.seen()
        self.begun, self._whole, self._taken = True, False, 0
        self._first_epoch = self.epoch if self._first_epoch is None else self._first_epoch
        if self._feeds and (noted := refuse_changes(self, self.at_first_batch)):
            look_soon(self.number, noted)
        self._alike.begins(self)

    def indices_to_come(self) -> Iterator[list[Index]]:
        """This rank's batches of the epoch that the next iteration is over; the loader stays where it is."""
        number, position, set_there = self.epoch, self._position, self._set_by_script.since()
        if self.begun or set_there not in (None, number):
            number, position = number + 1 if set_there is None else set_there, 0
        return self.samples.of_rank(number, position)

    def _streamed(self, streaming: Streaming) -> Generator[Any, None, None]:
        self._begin()
        number = self.epoch
        self._open_iterations += 1
        try:
            for made in streaming.batches(self._sources, self._shared_number):
                if (self.epoch, self.begun) == (number, True):
                    self._position += (self.batch_size or 1) * self._world
                self._took(number)
                yield made.batch
            self._whole = self.epoch == number
            self._alike.finished(self, self._set_by_script.told_since())
        finally:
            self._open_iterations -= 1

    def _took(self, epoch: int) -> None:
        """A batch of this epoch is about to be handed out."""
        global _batches_taken
        self._taken, _batches_taken = self._taken + ((self.epoch, self.begun) == (epoch, True)), _batches_taken + 1
        if (self._taken, epoch) == (2, self._first_epoch):
            registry.was_used(self._kind)
        self._alike.look_at(self._taken)

    def _batches(self) -> Generator[Any, None, None]:
        self._begin()
        number, samples = self.epoch, self.samples
        indices = samples.indices(number)
        if samples.drawn_by_the_scripts:
            self._alike.draws(number, indices, type(samples.own_sampler).__name__)
        self._set_by_script.seen()
        steps = samples.steps(number, self._position, indices)
        source = self._sources.batches(steps)
        self._open_iterations += 1
        try:
            for step in itertools.takewhile(steps.has, itertools.count()):
                made = source.next()
                if (self.epoch, self.begun) == (number, True):
                    self._position, self._whole = steps.position_after(step + 1), step + 1 == steps.known()
                self._took(number)
                self.skipped += tell_skipped(made.skipped, self.skipped)
                yield made.batch
            if (self._taken, number) == (1, self._first_epoch):
                registry.was_used(self._kind)  # its only batch was trained on
            self._alike.finished(self, self._set_by_script.told_since())
        finally:
            self._open_iterations -= 1
            source.close()
