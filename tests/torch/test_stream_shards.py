"""Ranks and data hosts divide an IterableDataset as torch's workers do. Datasets that cannot be divided are refused."""

import json
import os
import random

import pytest
import torch
from headrace.errors import DeadlineError, InputError
from headrace.torch.fetch.map_fetcher import SampleError
from headrace.torch.sampling.stream_shards import taken_after
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from tests.torch.draws import BOTH, Lines, all_lines, batches, lines_in


def test_servers_make_the_batches_of_local_mode_epoch_after_epoch(feeds):
    two = [feeds.serve(2, Lines(), 4) for _ in range(2)]
    expected = None
    for addresses in ([], two[:1], two):
        loader = feeds.loader(addresses, Lines(), 4, shards=3, seed=5, num_workers=1)
        found = [batches(loader) for _ in range(2)]
        expected = expected or found
        assert found == expected
    assert [lines_in(epoch) for epoch in expected] == [all_lines(Lines().lengths)] * 2
    assert expected[0] != expected[1] and {each for batch in expected[1] for each in batch[3]} == {1}


def test_batches_come_in_the_order_of_torchs_own_loader(feeds, monkeypatch):
    monkeypatch.setattr(random, "shuffle", lambda files: None)
    for workers in (0, 1, 3):
        own = torch.utils.data.DataLoader(Lines(), 4, num_workers=workers, collate_fn=_numbers)
        assert list(feeds.loader([], Lines(), 4, num_workers=workers, collate_fn=_numbers)) == list(own)


def _numbers(samples):
    return [each["index"] for each in samples]


class Uneven(Lines):
    """A stream whose shard p has the lines of file p."""

    def __iter__(self):
        number = get_worker_info().id
        for line in range(self.lengths[number]):
            yield {"index": number * 100 + line, "torch": torch.rand(2), "numpy": random.random(), "epoch": self.epoch}


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_servers_and_ranks_give_each_sample_once_and_resume_at_any_step_on_any_number_of_ranks(feeds, ranks, data):
    lengths = tuple(data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=5)))
    world, later = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    addresses = [feeds.serve(1, Uneven(lengths), 2) for _ in range(data.draw(st.integers(0, 2)))]
    options = {"shards": len(lengths), "seed": 3, "num_workers": 1}
    whole, _ = ranks(addresses, world, Uneven(lengths), 2, **options)
    assert len({len(rank) for rank in whole}) == 1, "the ranks made different numbers of steps"
    assert lines_in(unpadded(whole)) == all_lines(lengths)
    stop = data.draw(st.integers(1, len(whole[0])))
    first, states = ranks(addresses, world, Uneven(lengths), 2, most=stop, **options)
    assert first == [rank[:stop] for rank in whole]
    assert all(state["taken"] == states[0]["taken"] for state in states)
    left = [-(-length // 2) - taken for length, taken in zip(lengths, states[0]["taken"], strict=True)]
    rest, _ = ranks(addresses, later, Uneven(lengths), 2, state=states[0], **options)
    assert len({len(rank) for rank in rest}) == 1
    assert set(map(repr, unpadded(first) + unpadded(rest))) == set(map(repr, unpadded(whole)))
    if all(sum(left[rank::later]) for rank in range(later)):  # a rank without batches left repeats an earlier one
        assert sorted(map(repr, unpadded(first) + unpadded(rest))) == sorted(map(repr, unpadded(whole)))


def unpadded(of_ranks):
    """Return the batches of all ranks. A batch that a rank takes several times in a row counts once."""
    return [
        batch for rank in of_ranks for place, batch in enumerate(rank) if batch != (rank[place - 1] if place else None)
    ]


def test_without_drop_last_a_rank_that_has_ended_takes_its_last_batch_again_and_with_it_all_stop(ranks):
    padded, _ = ranks([], 2, Lines((6, 2)), 2, shards=2, seed=1, drop_last=False)
    assert [len(rank) for rank in padded] == [3, 3] and lines_in(unpadded(padded)) == all_lines((6, 2))
    dropped, _ = ranks([], 2, Lines((6, 2)), 2, shards=2, seed=1, drop_last=True)
    assert [len(rank) for rank in dropped] == [1, 1]


def test_a_rank_without_a_batch_is_told_so(ranks):
    with pytest.raises((InputError, DeadlineError), match=r"got no batch: .*Write at least as many|1 of 2 ranks"):
        ranks([], 2, Lines((6,)), 2, shards=2, seed=1, stall_timeout_s=4)


@pytest.mark.parametrize("module", ["streaming.base.dataset", "litdata.streaming.dataset"])
def test_a_librarys_dataset_whose_workers_wait_for_all_others_is_refused(feeds, module):
    library = type("StreamingDataset", (Lines,), {"__module__": module})
    users = type("Mine", (library,), {})
    with pytest.raises(InputError, match=rf"{module}.StreamingDataset already divides its samples among the ranks"):
        feeds.loader([], users(), 2)


def test_within_an_epoch_batches_keep_their_size(feeds):
    state = {"seed": 1, "epoch": 0, "position": 50, "shards": 1, "batch_size": 5, "taken": [10]}
    with pytest.raises(InputError, match="of an epoch with batch_size=5, but the loader has batch_size=4"):
        feeds.loader([], Lines(), 4).load_state_dict(state)
    feeds.loader([], Lines(), 4).load_state_dict(state | {"position": 0, "epoch": 1})


def test_a_rank_says_how_many_samples_a_batch_has(feeds):
    # A script's `batch_size // world_size()` is another number on a feed server.
    address = feeds.serve(1, Lines(), 8, seed=1, shards=2, drop_last=True)
    remote = batches(feeds.loader([address], Lines(), 4, seed=1, shards=2))
    assert remote == batches(feeds.loader([], Lines(), 4, seed=1, shards=2))
    assert len(remote) >= sum(Lines().lengths) // 4


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=9),
    st.integers(1, 8),
    st.integers(0, 60),
)
def test_how_far_each_shard_is_follows_from_the_steps_of_all_ranks(shards, world, steps):
    """`shards` has two numbers for each shard: the batches that it gave before these steps, and those that are left."""
    world = min(world, len(shards))
    begun, lengths = [each for each, _ in shards], {number: sum(each) for number, each in enumerate(shards)}
    taken = list(begun)
    for rank in range(world):
        own = range(rank, len(shards), world)
        turns = [shard for turn in range(10) for shard in own if begun[shard] + turn < lengths[shard]]
        for shard in turns[:steps]:
            taken[shard] += 1
    ended = {shard: length for shard, length in lengths.items() if taken[shard] == length}
    assert taken_after(steps, world, begun, ended) == taken


class Resuming(Lines):
    """A stream with a `state_dict`, like datasets that are made for StatefulDataLoader."""

    read = 0

    def __init__(self, lengths):
        super().__init__(lengths)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        number = get_worker_info().id
        while self.at < self.lengths[number]:
            self.at += 1
            yield {"index": number * 100 + self.at - 1, "torch": torch.zeros(2), "numpy": 0.0, "epoch": self.at}


@BOTH
def test_a_resume_uses_the_state_that_the_dataset_has_itself(feeds, remote):
    lengths, options = (9, 7), {"shards": 2, "num_workers": 1}
    addresses = [feeds.serve(1, Resuming(lengths), 2)] if remote else []
    whole = batches(feeds.loader(addresses, Resuming(lengths), 2, **options))
    loader = feeds.loader(addresses, Resuming(lengths), 2, **options)
    taken = iter(loader)
    for _ in range(4):
        next(taken)
    state = json.loads(json.dumps(loader.state_dict()))
    taken.close()
    assert state["states"] == {"0": {"at": 4}, "1": {"at": 4}}
    resumed = feeds.loader(addresses, Resuming(lengths), 2, **options)
    resumed.load_state_dict(state)
    assert batches(resumed) == whole[4:]
    state["states"]["0"] = {"at": 8}  # the resume follows the dataset's own state
    resumed.load_state_dict(state)
    assert next(iter(resumed))["index"].tolist() == [8]


class Whole(IterableDataset):
    """A stream that ignores `get_worker_info`."""

    def __iter__(self):
        return iter(range(10))


@BOTH
def test_a_dataset_that_does_not_say_how_it_is_shared_is_refused(feeds, remote):
    assert [batch.tolist() for batch in feeds.with_server(remote, Whole(), 5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    with pytest.raises((SampleError, InputError), match=r"Whole does not ask for its shard, .*get_worker_info"):
        list(feeds.with_server(remote, Whole(), 5, shards=2))


class Range(IterableDataset):
    """A stream whose `worker_init_fn` sets the range to read, as in torch's documentation."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def share(worker):
    info = get_worker_info()
    data, each = info.dataset, -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    data.start, data.end = data.start + worker * each, min(data.start + (worker + 1) * each, data.end)


@BOTH
def test_a_worker_init_fn_may_share_the_samples(feeds, remote):
    loader = feeds.with_server(remote, Range(0, 20), 4, num_workers=3, worker_init_fn=share)
    for _ in range(2):
        assert sorted(int(each) for batch in loader for each in batch) == list(range(20))


class ByRank(IterableDataset):
    """A stream that divides its samples by rank and worker, as scripts for torchrun do."""

    def __iter__(self):
        info, rank, world = get_worker_info(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        for number in range(rank * info.num_workers + info.id, 24, world * info.num_workers):
            yield {"index": number, "torch": torch.rand(2), "numpy": 0.0, "epoch": 0}


def test_a_dataset_that_shares_by_rank_as_well_loses_nothing(ranks):
    (first, second), _ = ranks([], 2, ByRank(), 3, num_workers=2)
    assert lines_in(first + second) == list(range(24))
