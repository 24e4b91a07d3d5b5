"""Ranks whose loaders differ get an error when an epoch begins; ranks of a stream agree on its end."""

import multiprocessing
import random
import threading

import pytest
import torch._dynamo  # imported once here, not in each forked rank that makes an optimizer
import torch.distributed as dist
from headrace.errors import DeadlineError, InputError
from headrace.torch import DataLoader, distributed
from headrace.torch.sampling.rank_agreement import StreamEnd, compare_with_rank_0
from torch.utils.data import SubsetRandomSampler, random_split

from tests.ports import free_port
from tests.torch.connected_ranks import in_ranks
from tests.torch.draws import Lines, Numbers, all_of
from tests.torch.test_dataloader import train


def samples_of_its_own(rank):
    random.seed(rank)
    chosen = random.sample(range(40), 20)
    list(DataLoader(Numbers(40), 2, sampler=SubsetRandomSampler(chosen)))


def split_of_its_own(rank):
    torch.manual_seed(rank)
    list(DataLoader(random_split(Numbers(40), [30, 10])[0], 2))


def part_of_its_own(rank):
    list(DataLoader(Numbers(40 - rank), 2))


def seed_of_its_own(rank):
    list(DataLoader(Numbers(40), 2, shuffle=True, seed=rank))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (seed_of_its_own, "order is 'shuffled with seed 1' here and 'shuffled with seed 0' on rank 0"),
        (samples_of_its_own, "order is .*: make the sampler from the same indices and the same seed on all ranks"),
        (split_of_its_own, "subset is .*: give random_split a generator with a seed"),
        (part_of_its_own, "length is 39 here and 40 on rank 0: make the same loaders on all ranks, in the same order"),
    ],
)
def test_ranks_that_would_not_share_the_samples_are_told_what_differs(tmp_path, script, message):
    with pytest.raises(InputError, match=f"loader 0, epoch 0, on rank 1: {message}"):
        in_ranks(script, tmp_path)


def test_an_epoch_that_rank_0_does_not_begin_is_named():
    with pytest.raises(DeadlineError, match=r"within 0\.1 s, rank 0 did not begin loader 5, epoch 3: "):
        compare_with_rank_0(dist.HashStore(), "loader 5, epoch 3", 1, 0.1, {})


def test_rank_0_alone_may_look_at_a_batch_where_epochs_are_set(tmp_path):
    """Scripts take a batch on rank 0 alone, for example for `writer.add_graph(model, next(iter(loader)))`."""

    def script(rank):
        loader = DataLoader(Numbers(20), 2, shuffle=True)
        if rank == 0:
            next(iter(loader))
        seen = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            seen.append(all_of(loader))
        return seen

    for one, other in zip(*in_ranks(script, tmp_path), strict=True):
        assert sorted(one + other) == list(range(20))


@pytest.mark.parametrize("stream", [False, True], ids=["map-style", "stream"])
def test_loaders_that_two_ranks_make_again_for_each_epoch_agree(tmp_path, stream):
    def script(rank):
        data = OfNumbers((6, 8)) if stream else Numbers(20)
        return [len(train(DataLoader(data, 2, shuffle=None if stream else True))) for _ in range(3)]

    assert in_ranks(script, tmp_path) == [[8 if stream else 10] * 3] * 2


def test_a_loader_of_rank_0_alone_is_nobody_elses(tmp_path):
    def script(rank):
        own = DataLoader(Numbers(9), 3, shard_by_rank=False)
        shared = DataLoader(Numbers(40), 2)
        return [(len(all_of(shared)), len(all_of(own)) if rank == 0 else 0) for _ in range(2)]

    assert in_ranks(script, tmp_path) == [[(20, 9)] * 2, [(20, 0)] * 2]


class OfNumbers(Lines):
    def __iter__(self):
        return (torch.tensor(each["index"]) for each in super().__iter__())


# The common end of a stream


def test_all_ranks_learn_of_each_step_how_many_have_a_batch():
    store = dist.HashStore()
    ends = [StreamEnd(store, "stream", rank, 2, 10.0) for rank in (0, 1)]
    found = [[], []]

    def run(rank, has):
        for each in has:
            ends[rank].say(each)
            found[rank].append(ends[rank].ranks_with_batch())

    by_rank = (True, True, False), (True, False, False)
    threads = [threading.Thread(target=run, args=given) for given in enumerate(by_rank)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert found == [[2, 1, 0], [2, 1, 0]]


def test_a_rank_that_does_not_come_to_a_step_is_missed():
    end = StreamEnd(dist.HashStore(), "stream", 0, 2, 0.1)
    end.say(True)
    with pytest.raises(DeadlineError, match=r"1 of 2 ranks have come to step 1 of a loader within 0\.1 s"):
        end.ranks_with_batch()


def test_a_failure_of_the_store_is_an_error_and_no_end_of_the_epoch(feeds, monkeypatch):
    port, fork = free_port(), multiprocessing.get_context("fork")
    ready = fork.Event()

    def serve():
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        ready.set()
        threading.Event().wait()
        del store

    master = fork.Process(target=serve, daemon=True)
    master.start()
    assert ready.wait(30)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    StreamEnd(store, "headrace/stream 0/1", 1, 2, 10.0).say(True)  # the other rank comes to the first step
    monkeypatch.setattr(distributed, "store_of_ranks", lambda: store)
    loader = feeds.loader([], Lines((9, 9)), 2, rank=0, world=2, shards=2)
    taken = iter(loader)
    next(taken)
    master.kill()
    master.join()
    with pytest.raises(RuntimeError, match=r"(?i)store|socket|connection|peer"):
        for _ in taken:
            pass
