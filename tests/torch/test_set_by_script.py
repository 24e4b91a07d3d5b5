"""What scripts do to loaders, samplers and datasets beside iterating, as torch's would take it."""

import pytest
import torch
from headrace.errors import InputError
from headrace.torch import DataLoader
from torch.utils.data import BatchSampler, SequentialSampler

from tests.torch.draws import Draws, batches, indices
from tests.torch.test_what_people_write import BOTH, Numbers, all_of


def test_two_loaders_over_one_dataset_draw_in_other_orders(feeds):
    first = feeds.loader([], Draws(), 4, shuffle=True)
    second, third = DataLoader(Draws(), 4, shuffle=True), DataLoader(Draws(20), 4, shuffle=True)
    pairs = list(zip(indices(first), indices(second), strict=True))
    assert sum(a == b for a, b in pairs) < 10
    assert third.seed == 0  # one rank alone may have made the others
    assert sorted(indices(third)) == list(range(20))


def test_loaders_made_anew_with_a_generator_that_is_kept_go_on_in_another_order(feeds):
    generator = torch.Generator().manual_seed(7)
    orders = [indices(feeds.loader([], Draws(), 4, shuffle=True, generator=generator))]
    orders += [indices(DataLoader(Draws(), 4, shuffle=True, generator=generator)) for _ in range(2)]
    assert len({tuple(order) for order in orders}) == 3
    again = feeds.loader([], Draws(), 4, shuffle=True, generator=torch.Generator().manual_seed(7))
    assert indices(again) == orders[0]


def test_a_loader_of_one_batch_that_is_made_anew_goes_on_in_another_order(feeds):
    orders = [indices(feeds.loader([], Draws(), 53, shuffle=True))]
    orders += [indices(DataLoader(Draws(), 53, shuffle=True)) for _ in range(2)]
    assert len({tuple(order) for order in orders}) == 3


class MoreThanSaid(BatchSampler):
    def __len__(self):
        return 3


class Endless(SequentialSampler):
    def __iter__(self):
        while True:
            yield from super().__iter__()


def test_all_that_a_sampler_yields_comes_whatever_length_it_says(feeds):
    more = MoreThanSaid(SequentialSampler(Draws()), 4, False)
    assert indices(feeds.loader([], Draws(), batch_sampler=more)) == list(range(53))


def test_another_sampler_put_into_a_loader_is_refused(feeds):
    loader = feeds.loader([], Draws(), 4)
    object.__setattr__(loader, "batch_sampler", Endless(Draws()))
    with pytest.raises(InputError, match="give the loader its sampler when it is made"):
        next(iter(loader))


@BOTH
def test_another_batch_size_set_on_a_loaders_batch_sampler_is_refused(feeds, remote):
    loader = feeds.loader([feeds.serve(1, Draws(), 4)] if remote else [], Draws(), 4)
    list(loader)
    loader.batch_sampler.batch_size = 8
    with pytest.raises(InputError, match="make a loader of that batch size"):
        list(loader)


def test_a_batch_sampler_of_the_scripts_own_may_be_given_another_batch_size(feeds):
    own = BatchSampler(SequentialSampler(Draws()), 4, False)
    loader = feeds.loader([feeds.serve(1, Draws(), batch_sampler=own)], Draws(), batch_sampler=own)
    list(loader)
    own.batch_size = 8
    assert [len(each[0]) for each in batches(loader)] == [8] * 6 + [5]


class Bad(Numbers):
    def __getitem__(self, index):
        if index == 9:
            raise ValueError("bad file")
        return index


@BOTH
def test_what_a_script_leaves_out_by_catching_an_error_does_not_look_like_the_end_of_the_epoch(feeds, remote):
    loader = feeds.loader([feeds.serve(1, Bad(40), 4)] if remote else [], Bad(40), 4)
    taken, iterator = [], iter(loader)
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


def test_a_second_iteration_beside_persistent_workers_has_workers_of_its_own(feeds):
    expected = batches(feeds.loader([], Draws(), 4, shuffle=True))
    loader = feeds.loader([], Draws(), 4, shuffle=True, num_workers=1, persistent_workers=True)
    look = iter(loader)
    next(look)
    assert len(list(loader)) == len(expected)
    look.close()
    assert len(list(loader)) == len(expected)


def doubled(samples):
    return torch.tensor(samples) * 2


def test_a_collate_function_that_is_set_on_the_loader_before_its_first_batch_is_no_change(feeds):
    here = feeds.loader([], Numbers(8), 4)
    here.collate_fn = doubled
    assert all_of(here) == list(range(0, 16, 2))
    loader = feeds.loader([feeds.serve(1, Numbers(8), 4)], Numbers(8), 4)
    loader.collate_fn = doubled  # as the server's script would have done
    assert len(list(loader)) == 2
    loader.collate_fn = len
    with pytest.raises(InputError, match=r"has changed since the first batch \(collate_fn\)"):
        list(loader)


class Unsized(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


@BOTH
def test_a_dataset_without_a_length_needs_a_sampler_that_has_one(feeds, remote):
    addresses = [feeds.serve(1, Unsized(), 4, sampler=[3, 1, 2])] if remote else []
    assert all_of(feeds.loader(addresses, Unsized(), 4, sampler=[3, 1, 2])) == [3, 1, 2]
