"""Divide an `IterableDataset` into shards, and divide the shards among the ranks.

Rank r takes a batch from shard r, then from shard r + world, … in turn, as torch's loader does with workers. All
ranks make the same number of steps: without `drop_last`, a rank whose shards have ended repeats its last batch.
"""

from __future__ import annotations

import bisect
import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import InputError
from headrace.torch import distributed
from headrace.torch.fetch.iterable_fetcher import MOST_SHARDS, ShardRequest
from headrace.torch.fetch.map_fetcher import Fetched
from headrace.torch.sampling.rank_agreement import StreamEnd

MORE_FILES = (
    "Each rank needs a shard with samples. Write at least as many files as there are ranks, use fewer ranks, or "
    "use a map-style dataset"
)
_SHARE_THEMSELVES = ("streaming.base.", "litdata.")
"""Modules of Mosaic's and Lightning's datasets. These datasets are refused: they already divide samples among ranks."""
Open = Callable[[Callable[[int, int], ShardRequest], int], Any]
"""Opens a source, which has methods `next` and `close`. Arguments: a function that makes requests; number of shards."""


def taken_after(steps: int, world: int, begun: Sequence[int], lengths: Mapping[int, int]) -> list[int]:
    """Return how many batches of each shard have been trained on after `steps` steps of every rank.

    Args:
        begun: for each shard, the number of batches that were trained on before these steps.
        lengths: for each shard that has ended, its number of batches. Other shards do not end within these steps.
    """
    taken = list(begun)
    for rank in range(world):
        own = range(rank, len(begun), world)
        left = [lengths[shard] - begun[shard] if shard in lengths else steps for shard in own]
        rounds = bisect.bisect_right(range(steps + 1), steps, key=lambda count: sum(min(count, each) for each in left))
        rounds -= 1  # complete rounds, in each of which every shard that has not ended gives a batch
        more = steps - sum(min(rounds, each) for each in left)
        for shard, each in zip(own, left, strict=True):
            one_more = int(more > 0 and each > rounds)
            taken[shard] += min(rounds, each) + one_more
            more -= one_more
    return taken


class StreamShards:
    """A loader's position in the shards of an `IterableDataset`.

    Args:
        loader: a `headrace.torch.dataloader.DataLoader`.
        shards: number of shards of an epoch; 0: number of ranks × max(`num_workers`, 1).
        limit_s: seconds to wait for the other ranks.
    """

    def __init__(self, loader: Any, shards: int, rank: int, world: int, limit_s: float) -> None:
        for each in type(loader.dataset).__mro__:
            if each.__module__.startswith(_SHARE_THEMSELVES):
                raise InputError(
                    f"{each.__module__}.{each.__qualname__} already divides its samples among the ranks. Use its own "
                    "loader or torch.utils.data.DataLoader, and train without data hosts (--no-is_hetero)"
                )
        if shards < 0 or shards > MOST_SHARDS:
            raise InputError(f"shards is {shards}; expected 1 to {MOST_SHARDS}")
        self._loader, self._rank, self._world, self._limit_s = loader, rank, world, limit_s
        self._set_shards(shards or world * max(loader.num_workers, 1))
        self.steps = 0
        self._end: StreamEnd | None = None

    def _set_shards(self, shards: int) -> None:
        if shards < self._world:
            raise InputError(
                f"an IterableDataset in {shards} shards cannot be shared by {self._world} ranks. {MORE_FILES}"
            )
        self.shards = shards
        self._begun = [0] * shards
        self._states: dict[int, Any] = {}

    @property
    def own(self) -> range:
        """The shards that this rank takes."""
        return range(self._rank, self.shards, self._world)

    @property
    def local_workers(self) -> int:
        """Number of local workers: one for each shard of this rank; 0 with one rank, one shard and `num_workers=0`."""
        alone = self.shards == 1 and not self._loader.num_workers and distributed.world_size() == 1
        return 0 if alone else len(self.own)

    def begin_epoch(self) -> None:
        """Start the next iteration at the beginning of each shard."""
        self._begun, self.steps, self._end, self._states = [0] * self.shards, 0, None, {}

    def place(self, whole: bool) -> dict[str, Any]:
        """Return the shards' part of a loader's `state_dict()`. `whole` tells whether the epoch is over."""
        end = None if whole else self._end
        lengths: Mapping[int, int] = end.lengths(self.shards) if end else {}
        taken = [0] * self.shards if whole else taken_after(self.steps, self._world, self._begun, lengths)
        place = {"shards": self.shards, "batch_size": self._loader.batch_size, "taken": taken}
        states = {} if whole else {shard: self._state(shard, number) for shard, number in enumerate(taken)}
        known = {str(shard): state for shard, state in states.items() if state is not None}
        return place | ({"states": known} if known else {})

    def _state(self, shard: int, number: int) -> Any:
        if number == self._begun[shard]:
            return self._states.get(shard)
        return self._end.state_of(shard, number) if self._end else None

    def go_to(self, state: Mapping[str, Any], at_the_beginning: bool) -> None:
        """Go to the position in a loader's `state_dict()`. Raises `InputError` if `state` is wrong or does not fit."""
        self.begin_epoch()
        if at_the_beginning and "shards" in state:
            return
        try:
            batch_size, taken = state["batch_size"], [int(each) for each in state["taken"]]
            states = {int(shard): each for shard, each in state.get("states", {}).items()}
            if len(taken) != int(state["shards"]) or min(taken) < 0:
                raise ValueError("the state does not have one number for each shard")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is not from an IterableDataset's loader.state_dict(): {state!r:.200}") from error
        if batch_size != self._loader.batch_size:
            raise InputError(
                f"the state is from the middle of an epoch with batch_size={batch_size}, but the loader has batch_size="
                f"{self._loader.batch_size}: finish the epoch with batch_size={batch_size}"
            )
        self._set_shards(len(taken))  # the epoch has this many shards, whatever this run would have chosen
        self._begun, self._states = taken, states

    def _requests(self) -> Callable[[int, int], ShardRequest]:
        """Return a function of `lane` and `number`. It makes the request for batch `number` of shard `own[lane]`."""
        own, begun, states = self.own, list(self._begun), dict(self._states)
        seed, epoch, shards = self._loader.seed, self._loader.epoch, self.shards
        # The rank sends these two, because the script may compute different values on a feed server.
        size, drop_last = self._loader.batch_size or 0, bool(self._loader.drop_last)

        def request(lane: int, number: int) -> ShardRequest:
            shard = own[lane]
            first = begun[shard]  # this run's batch 0
            return ShardRequest(
                seed, epoch, shard, shards, first + number, size, drop_last, begins_at=first, state=states.get(shard)
            )

        return request

    def batches(self, open_shards: Open, name: str, store: Any) -> tuple[Iterator[Fetched], Any]:
        """Open a source of this rank's shards. Return an iterator of batches, and the source, which callers close.

        Args:
            name: name of the iteration, the same on all ranks.
            store: the store that all ranks share; None if there is one rank, or the ranks are not connected.
        """
        if self._world > 1 and store is None:
            raise InputError("the ranks are not connected: call headrace.torch.init() before the first batch")
        self._end = end = StreamEnd(store, name, self._rank, self._world, self._limit_s)
        request = self._requests()
        source = open_shards(request, len(self.own))
        own = self._own(source, end)
        return (own if store is None else self._agreed(own, end, open_shards, request(0, 0))), source

    def _agreed(
        self, own: Iterator[Fetched], end: StreamEnd, open_shards: Open, first: ShardRequest
    ) -> Iterator[Fetched]:
        """Yield one batch for each step that all ranks make. Repeat this rank's last batch while others have more.

        Before yielding a batch, a rank publishes whether it has one for the next step. So others rarely wait for it.
        """
        fetched = next(own, None)
        last: Any = None
        end.say(fetched is not None)
        for step in itertools.count():
            have = end.ranks_with_batch()
            too_few = self._loader.drop_last and have < self._world
            if too_few and have and not step and not any(self._begun):
                raise InputError(
                    f"an epoch has no step: only {have} of {self._world} ranks have a batch, but drop_last "
                    f"requires one on every rank. {MORE_FILES}"
                )
            if not have or too_few:
                end.leave()
                return
            following = next(own, None) if fetched else None
            if fetched and following is None:
                last = copy.deepcopy(fetched)  # a script may change its batches in place
            if fetched is None and last is None:
                last = self._from_before(open_shards, first)
            end.say(following is not None)
            yield fetched or copy.deepcopy(last)
            fetched = following

    def _from_before(self, open_shards: Open, first: ShardRequest) -> Fetched:
        """Return a batch for a rank that got none in this run: the last batch that an earlier run took from a shard.

        `first` is the rank's first request. Raises `InputError` if no earlier run took a batch of this epoch.
        """
        known = [shard for shard in (*self.own, *range(self.shards)) if self._begun[shard]]
        if not known:
            raise InputError(
                f"rank {self._rank} got no batch: its shards of the IterableDataset are empty, but others are not. "
                f"{MORE_FILES}; or set shards= to at most the number of files"
            )
        last = self._begun[known[0]] - 1
        again = dataclasses.replace(first, shard=known[0], begins_at=0, state=None)
        source = open_shards(lambda lane, number: dataclasses.replace(again, number=last + number), 1)
        with contextlib.closing(source):
            fetched: Fetched = source.next()
        return fetched

    def _own(self, source: Any, end: StreamEnd) -> Iterator[Fetched]:
        own = self.own
        count, over = [0] * len(own), [False] * len(own)
        while not all(over):
            for lane, shard in enumerate(own):
                fetched = source.next()
                if fetched.over and not over[lane]:
                    over[lane] = True
                    end.shard_ended(shard, self._begun[shard] + count[lane])
                if not over[lane]:
                    count[lane] += 1
                    if fetched.state is not None:
                        end.publish_state(shard, self._begun[shard] + count[lane], fetched.state)
                    yield fetched
