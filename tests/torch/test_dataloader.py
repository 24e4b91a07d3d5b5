"""The DataLoader: its arguments, its place among the script's loaders, its seeds, and what scripts do with it."""

import gc
import weakref

import pytest
import torch
from headrace.errors import InputError
from headrace.torch import DataLoader

from tests.torch.draws import BOTH, Draws, Lines, Numbers, all_of, batches, indices


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (Draws(), {"on_error": "ignore"}, "on_error"),
        (Draws(), {"batch_size": 0}, "positive"),
        (Draws(), {"shuffle": 1, "sampler": [1]}, "mutually"),
        (Draws(), {"in_order": False}, "in_order=False is not supported"),
        (Draws(), {"pin_memory_device": "cuda"}, "pin_memory_device is not supported: use pin_memory=True or device="),
        (Draws(), {"shards": 2}, "shards is for an IterableDataset"),
        (Lines(), {"shards": 1}, "1 shards cannot be shared by 2 ranks"),
        (Lines(), {"shards": -1}, "expected 1 to"),
        (Lines(), {"on_error": "skip"}, "needs a map-style dataset"),
    ],
)
def test_wrong_arguments_are_refused(feeds, data, arguments, message):
    with pytest.raises((InputError, ValueError), match=message):
        feeds.loader([], data, world=2, **arguments)


def test_a_state_that_is_none_is_refused(feeds):
    loader = feeds.loader([], Draws(), 4)
    for state in ({}, {"seed": 1, "epoch": "x", "position": 0}, None):
        with pytest.raises(InputError, match="this is not from a DataLoader's state_dict"):
            loader.load_state_dict(state)


def test_each_rank_can_take_all_samples(feeds):
    loader = feeds.loader([], Draws(), 8, rank=1, world=2, shard_by_rank=False)
    assert indices(loader) == list(range(53))


def test_ranks_that_nothing_connects_are_warned_of_and_train(feeds, capsys):
    """If torch.distributed does not connect the ranks, headrace warns and trains. Another library, such as Horovod, may
    average the ranks' gradients."""
    loader = feeds.loader([], Draws(), 4, rank=1, world=2)
    for _ in range(2):
        assert len(indices(loader)) == 27
    assert capsys.readouterr().out.count("warning: torch.distributed does not connect the ranks") == 1


# Seeds and places


def test_seeds_follow_from_the_loaders_place_whatever_its_dataset(feeds):
    first = feeds.loader([], Lines(), 4)
    seeds = [each.seed for each in (first, DataLoader(Lines(), 4), DataLoader(Draws(), 4), DataLoader(Draws(8), 4))]
    assert len(set(seeds)) == 4
    again = feeds.loader([], Draws(20), 4)
    assert [again.seed, DataLoader(Draws(9), 4).seed] == seeds[:2]
    assert feeds.loader([], Draws(), 4, seed=5).seed == DataLoader(Draws(), 4, seed=5).seed == 5


def test_a_loader_of_one_rank_alone_shifts_no_others_seed(feeds):
    expected = [feeds.loader([], Draws(), 4).seed, DataLoader(Draws(), 4).seed]
    own = feeds.loader([], Draws(), 4, shard_by_rank=False)
    assert [DataLoader(Draws(), 4).seed, DataLoader(Draws(), 4).seed] == expected
    assert own.seed not in expected


def test_a_name_is_a_loaders_place_whatever_other_loaders_there_are(feeds):
    alone = feeds.loader([], Draws(), 4, shuffle=True, name="train")
    feeds.loader([], Draws(), 4)
    later = DataLoader(Draws(), 4, shuffle=True, name="train")
    assert indices(alone) == indices(later) != indices(DataLoader(Draws(), 4, shuffle=True))
    with pytest.raises(InputError, match="two loaders have the name 'train'"):
        feeds.loader([], Draws(), 4, name="train")
        DataLoader(Draws(), 4, name="train")


def train(loader):
    """Train for an epoch, and return its samples."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = []
    for batch in loader:
        model(batch[:, None].float()).sum().backward()
        optimizer.step()
        seen += batch.tolist()
    return seen


@BOTH
def test_a_loader_that_is_made_again_under_its_name_goes_on_in_another_order_and_keeps_its_place(feeds, remote):
    data = Numbers(20)
    made = {"shuffle": True, "collate_fn": torch.tensor, "name": "train"}
    addresses = [feeds.serve(1, Numbers(20), 4, **made)] if remote else []

    def epochs(count, state=None):
        loader = feeds.loader(addresses, data, 4, **made)
        if state:
            loader.load_state_dict(state)
        orders = []
        for number in range(count):
            orders.append(train(loader))
            assert loader.made_elsewhere == remote
            state = loader.state_dict()
            loader = DataLoader(data, 4, **made) if number + 1 < count else loader
        return orders, state

    orders, _ = epochs(4)
    assert len({tuple(each) for each in orders}) == 4 and all(sorted(each) == list(range(20)) for each in orders)
    first, state = epochs(2)
    assert first + epochs(2, state)[0] == orders, "the same after a resume"


def test_a_dataset_of_a_loader_that_is_gone_goes_too(feeds):
    loader = feeds.loader([], data := Draws(), 4, shuffle=True)
    alive = weakref.ref(data)
    del loader, data
    gc.collect()
    assert alive() is None


# What scripts do with a loader


class Bad(Numbers):
    def __getitem__(self, index):
        if index == 9:
            raise ValueError("bad file")
        return index


@BOTH
def test_what_a_script_leaves_out_by_catching_an_error_does_not_look_like_the_end_of_the_epoch(feeds, remote):
    taken, iterator = [], iter(feeds.with_server(remote, Bad(40), 4))
    assert len(iterator) == 10
    with pytest.raises(SystemExit, match="on_error='skip'"):
        while True:
            try:
                taken += next(iterator).tolist()
            except StopIteration:
                break
            except Exception:
                continue
    assert taken == list(range(8))


class Scaled(Numbers):
    def __getitem__(self, index):
        return index * self.scale


@BOTH
def test_workers_keep_the_dataset_of_the_first_iteration(feeds, remote):
    data = Scaled(8, scale=1)
    loader = feeds.with_server(remote, data, 4, num_workers=1)
    all_of(loader)
    data.scale = 2
    assert all_of(loader) == list(range(8))


def test_a_collate_function_that_the_script_sets_before_the_first_batch_counts(feeds):
    loader = feeds.loader([], Numbers(8), 4)
    loader.collate_fn = doubled
    assert all_of(loader) == list(range(0, 16, 2))


def doubled(samples):
    return torch.tensor(samples) * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_tensor_lies_on_the_device_that_the_script_asks_for(feeds, workers):
    for batch in feeds.loader([], Draws(8), 4, device="meta", num_workers=workers):
        assert batch["torch"].device.type == batch["index"].device.type == "meta"
    assert len(batches(feeds.loader([], Draws(8), 4, device="cpu"))) == 2


def test_the_launcher_hears_that_the_script_reads_data_when_it_takes_its_first_batch(feeds, capsys):
    loader = feeds.loader([], Draws(), 4)
    assert "event=reads_data" not in capsys.readouterr().out
    for _ in range(2):
        next(iter(loader))
    assert capsys.readouterr().out.count("event=reads_data") == 1
