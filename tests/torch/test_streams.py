"""An IterableDataset is shared by ranks and made by data hosts as torch's workers share it: exactly, or not at all."""

import dataclasses
import itertools
import multiprocessing
import os
import random

import numpy as np
import pytest
import torch
from headrace.errors import DeadlineError, InputError
from headrace.torch import streaming
from headrace.torch.fetch import SampleError
from headrace.torch.fingerprint import fingerprint
from headrace.torch.loader import DataLoader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset, get_worker_info

from tests.torch.lines import Lines, all_lines, indices, plain


@pytest.fixture
def ranks(feeds, monkeypatch, tmp_path):
    """What several ranks take, each in a process of its own; they agree through a store in a file."""
    fork, numbers = multiprocessing.get_context("fork"), itertools.count()

    def run(addresses, world, *arguments, **options):
        store = tmp_path / f"store{next(numbers)}"
        pipes = [fork.Pipe(duplex=False) for _ in range(world)]
        processes = [
            fork.Process(target=read, args=(pipe, store, rank, world, addresses, *arguments), kwargs=options)
            for rank, (_, pipe) in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        found = [pipe.recv() for pipe, _ in pipes]
        for process in processes:
            process.join()
        for each in found:
            if isinstance(each, Exception):
                raise each
        return [taken for taken, _ in found], [state for _, state in found]

    def read(pipe, path, rank, world, addresses, *arguments, state=None, most=None, anew=None, **options):
        try:
            store = torch.distributed.FileStore(str(path), world)
            monkeypatch.setattr(streaming, "store_of_ranks", lambda: store)
            loader = feeds.loader(addresses, *arguments, rank=rank, world=world, **options)
            if state:
                loader.load_state_dict(state)
            taken, batches = [], iter(loader)
            for batch in batches:
                taken.append(plain(batch))
                if len(taken) == most:
                    break
            state = loader.state_dict()
            batches.close()
            if most:
                assert loader.state_dict() == state  # breaking off has ended no part
            if anew:  # of the very dataset, which is longer now
                arguments[0].lengths = anew
                taken += map(plain, DataLoader(*arguments, **options))
            pipe.send((taken, state))
        except Exception as error:
            pipe.send(error)

    return run


def test_servers_make_the_batches_of_local_mode_epoch_after_epoch(feeds):
    two = [feeds.serve(2, Lines(), 4) for _ in range(2)]
    expected = None
    for addresses in ([], two[:1], two):
        loader = feeds.loader(addresses, Lines(), 4, shards=3, seed=5, num_workers=1)
        found = [[plain(batch) for batch in loader] for _ in range(2)]
        expected = expected or found
        assert found == expected
    assert [indices(epoch) for epoch in expected] == [all_lines(Lines().lengths)] * 2
    assert expected[0] != expected[1] and {each for batch in expected[1] for each in batch[3]} == {1}


def test_batches_come_in_the_order_of_torchs_own_loader(feeds, monkeypatch):
    monkeypatch.setattr(random, "shuffle", lambda files: None)
    for workers in (0, 1, 3):
        own = torch.utils.data.DataLoader(Lines(), 4, num_workers=workers, collate_fn=_numbers)
        assert list(feeds.loader([], Lines(), 4, num_workers=workers, collate_fn=_numbers)) == list(own)


def _numbers(samples):
    return [each["index"] for each in samples]


class Uneven(Lines):
    """Part p has the lines of file p."""

    def __iter__(self):
        number = get_worker_info().id
        for line in range(self.lengths[number]):
            yield {"index": number * 100 + line, "draws": torch.rand(2), "numpy": random.random(), "epoch": self.epoch}


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_servers_and_ranks_give_each_sample_once_and_resume_at_any_step_on_any_number_of_ranks(feeds, ranks, data):
    lengths = tuple(data.draw(st.lists(st.integers(1, 9), min_size=3, max_size=5)))
    world, later = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    addresses = [feeds.serve(1, Uneven(lengths), 2) for _ in range(data.draw(st.integers(0, 2)))]
    options = {"shards": len(lengths), "seed": 3, "num_workers": 1}
    whole, _ = ranks(addresses, world, Uneven(lengths), 2, **options)
    assert len({len(rank) for rank in whole}) == 1, "all ranks make the same number of steps"
    assert indices(unpadded(whole)) == all_lines(lengths)
    stop = data.draw(st.integers(1, len(whole[0])))
    first, states = ranks(addresses, world, Uneven(lengths), 2, most=stop, **options)
    assert first == [rank[:stop] for rank in whole]
    assert all(state["taken"] == states[0]["taken"] for state in states)
    left = [-(-length // 2) - taken for length, taken in zip(lengths, states[0]["taken"], strict=True)]
    rest, _ = ranks(addresses, later, Uneven(lengths), 2, state=states[0], **options)
    assert len({len(rank) for rank in rest}) == 1
    assert set(map(repr, unpadded(first) + unpadded(rest))) == set(map(repr, unpadded(whole)))
    if all(sum(left[rank::later]) for rank in range(later)):  # else a rank takes one that was trained on before
        assert sorted(map(repr, unpadded(first) + unpadded(rest))) == sorted(map(repr, unpadded(whole)))


def unpadded(of_ranks):
    """All batches, those that a rank took again left out."""
    return [
        batch for rank in of_ranks for place, batch in enumerate(rank) if batch != (rank[place - 1] if place else None)
    ]


def test_without_drop_last_a_rank_that_has_ended_takes_its_last_batch_again_and_with_it_all_stop(ranks):
    padded, _ = ranks([], 2, Lines((6, 2)), 2, shards=2, seed=1, drop_last=False)
    assert [len(rank) for rank in padded] == [3, 3] and indices(unpadded(padded)) == all_lines((6, 2))
    dropped, _ = ranks([], 2, Lines((6, 2)), 2, shards=2, seed=1, drop_last=True)
    assert [len(rank) for rank in dropped] == [1, 1]


def test_a_rank_without_a_batch_is_told_so(ranks):
    with pytest.raises((InputError, DeadlineError), match=r"got no batch: .*fewer shards|1 of 2 ranks"):
        ranks([], 2, Lines((6,)), 2, shards=2, seed=1, stall_timeout_s=4)


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


@pytest.mark.parametrize(
    "options, message",
    [({"shards": 1}, "1 parts cannot be shared by 2 ranks"), ({"shards": -1}, "expected 1 to"),
     ({"on_error": "skip"}, "needs a map-style dataset")],
)  # fmt: skip
def test_wrong_arguments_are_refused(feeds, options, message):
    with pytest.raises(InputError, match=message):
        feeds.loader([], Lines(), 2, world=2, **options)
    with pytest.raises(InputError, match="shards is for an IterableDataset"):
        feeds.loader([], [1, 2, 3], 2, shards=2)


def test_a_state_of_another_kind_of_dataset_is_refused(feeds):
    with pytest.raises(InputError, match="no state of a DataLoader of an IterableDataset"):
        feeds.loader([], Lines(), 2).load_state_dict({"seed": 1, "epoch": 0, "position": 4})


def test_within_an_epoch_batches_keep_their_size(feeds):
    state = {"seed": 1, "epoch": 0, "position": 50, "shards": 1, "batch_size": 5, "taken": [10]}
    with pytest.raises(InputError, match="goes on with batches of the same size, 5, and not 4"):
        feeds.loader([], Lines(), 4).load_state_dict(state)
    feeds.loader([], Lines(), 4).load_state_dict(state | {"position": 0, "epoch": 1})


def test_a_loader_made_anew_for_each_epoch_agrees_anew(ranks):
    one, _ = ranks([], 2, Uneven((4, 4)), 2, shards=2, drop_last=True, anew=(8, 6))
    assert [len(rank) for rank in one] == [2 + 3, 2 + 3]


def test_generators_and_shares_that_a_library_has_noted_must_be_alike_in_a_stream():
    @dataclasses.dataclass
    class Share:
        rank: int
        draws: np.random.Generator

    def made(rank, seed):
        data = Lines()
        data.share = Share(rank, np.random.default_rng(seed))
        return fingerprint(data)

    assert made(0, 1) == made(0, 1)
    assert made(0, 1) != made(1, 1) and made(0, 1) != made(0, 2)
