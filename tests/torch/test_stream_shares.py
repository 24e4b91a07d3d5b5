"""How a stream shares its samples among its parts: by worker, by worker_init_fn, by rank as well, or not at all."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from headrace.errors import InputError
from headrace.torch.fetch.map_fetcher import SampleError
from headrace.torch.sampling import stream_shards as streaming
from torch.utils.data import IterableDataset, get_worker_info

from tests.torch.lines import indices


class Whole(IterableDataset):
    """As written by who does not know of workers."""

    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize("remote", [False, True])
def test_a_dataset_that_does_not_say_how_it_is_shared_is_refused(feeds, remote):
    addresses = [feeds.serve(1, Whole(), 5)] if remote else []
    assert [batch.tolist() for batch in feeds.loader(addresses, Whole(), 5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    with pytest.raises((SampleError, InputError), match=r"Whole does not say which .*get_worker_info"):
        list(feeds.loader(addresses, Whole(), 5, shards=2))


class Range(IterableDataset):
    """As in torch's documentation: what is to be read is written by `worker_init_fn`."""

    def __init__(self, start, end):
        self.start, self.end = start, end

    def __iter__(self):
        return iter(range(self.start, self.end))


def share(worker):
    info = get_worker_info()
    data, each = info.dataset, -(-(info.dataset.end - info.dataset.start) // info.num_workers)
    data.start, data.end = data.start + worker * each, min(data.start + (worker + 1) * each, data.end)


@pytest.mark.parametrize("remote", [False, True])
def test_a_worker_init_fn_may_share_the_samples(feeds, remote):
    options = {"num_workers": 3, "worker_init_fn": share}
    addresses = [feeds.serve(1, Range(0, 20), 4, **options)] if remote else []
    loader = feeds.loader(addresses, Range(0, 20), 4, **options)
    for _ in range(2):
        assert sorted(int(each) for batch in loader for each in batch) == list(range(20))


class ByRank(IterableDataset):
    """Shares by rank and worker, as scripts for torchrun do."""

    def __iter__(self):
        info, rank, world = get_worker_info(), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        for number in range(rank * info.num_workers + info.id, 24, world * info.num_workers):
            yield {"index": number, "draws": torch.rand(2), "numpy": 0.0, "epoch": 0}


def test_a_dataset_that_shares_by_rank_as_well_loses_nothing(ranks):
    (first, second), _ = ranks([], 2, ByRank(), 3, num_workers=2)
    assert indices(first + second) == list(range(24))


RANK = WORLD_SIZE = 0


class ByRankOfOutside(IterableDataset):
    """As scripts for torchrun do that read the numbers once, into `config` or globals."""

    def __init__(self, config=None):
        self.config = config

    def __iter__(self):
        rank, world = (self.config.rank, self.config.world) if self.config else (RANK, WORLD_SIZE)
        info = get_worker_info()
        yield from range(rank * info.num_workers + info.id, 24, world * info.num_workers)


@pytest.mark.parametrize("config", [True, False])
def test_a_share_by_a_rank_that_was_read_before_is_refused(feeds, monkeypatch, config):
    for rank in (0, 1):
        monkeypatch.setattr(sys.modules[__name__], "RANK", rank)
        monkeypatch.setattr(sys.modules[__name__], "WORLD_SIZE", 2)
        dataset = ByRankOfOutside(SimpleNamespace(rank=rank, world=2) if config else None)
        loader = feeds.loader([], dataset, 3, rank=rank, world=2, num_workers=2)
        monkeypatch.setattr(streaming, "store_of_ranks", torch.distributed.HashStore)
        with pytest.raises(InputError, match=rf"ByRankOfOutside knows its rank \(\w+={rank}, \w+=2\).*shard_by_rank"):
            next(iter(loader))
        alone = feeds.loader([], dataset, 3, rank=rank, world=2, num_workers=2, shard_by_rank=False)
        assert sorted(int(each) for batch in alone for each in batch) == sorted(
            {*range(2 * rank, 24, 4), *range(2 * rank + 1, 24, 4)}
        )


class Unshared(IterableDataset):
    """Knows its rank, and shares by its part alone."""

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        if self.config.rank == 0:
            print(f"one of {self.config.world}")
        yield from range(get_worker_info().id, 24 + 0 * self.config.lora_rank, get_worker_info().num_workers)


def test_a_dataset_that_knows_its_rank_and_takes_no_share_is_as_others(ranks):
    for config in SimpleNamespace(rank=0, world=2, lora_rank=1), SimpleNamespace(rank=0, num_shards=2, lora_rank=0):
        config.world = 2
        (first, second), _ = ranks([], 2, Unshared(config), 4, collate_fn=as_draws, num_workers=2)
        assert indices(first + second) == list(range(24))


def as_draws(samples):
    none = torch.zeros(len(samples))
    return {"index": torch.tensor(samples), "draws": none, "numpy": none, "epoch": none}


class FileOfOnes(IterableDataset):
    """Reads the file that it opened when it was made."""

    def __init__(self, path):
        self.file = open(path)  # noqa: SIM115

    def __iter__(self):
        info = get_worker_info()
        for number, line in enumerate(self.file):
            if number % info.num_workers == info.id:
                yield int(line)


@pytest.mark.parametrize("remote", [False, True])
def test_each_part_reads_from_its_own_place_in_an_open_file(feeds, tmp_path, remote):
    path = tmp_path / "numbers"
    path.write_text("".join(f"{number}\n" for number in range(5000)))
    addresses = [feeds.serve(1, FileOfOnes(path), 50, num_workers=4)] if remote else []
    data = FileOfOnes(path)
    taken = [int(each) for batch in feeds.loader(addresses, data, 50, num_workers=4) for each in batch]
    assert sorted(taken) == list(range(5000))
