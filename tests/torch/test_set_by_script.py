"""What scripts do to loaders, samplers and datasets beside iterating, as torch's would take it."""

import pytest
import torch
from headrace.errors import InputError
from headrace.torch import DataLoader
from torch.utils.data import BatchSampler, ConcatDataset, DistributedSampler, SequentialSampler

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


def test_an_epoch_that_was_set_on_a_sampler_before_its_loader_was_made_counts(feeds):
    sampler = DistributedSampler(Draws(), 2, 1, seed=3)
    sampler.set_epoch(7)
    expected = list(sampler)
    assert indices(feeds.loader([], Draws(), 4, sampler=sampler, rank=1, world=2)) == expected


class Curriculum(Numbers):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return self.epoch


@BOTH
def test_the_epoch_that_a_script_sets_on_its_dataset_counts(feeds, remote):
    data = Curriculum(8)
    loader = feeds.loader([feeds.serve(1, Curriculum(8), 4)] if remote else [], data, 4)
    seen = []
    for epoch in (11, 12, 20):
        data.set_epoch(epoch)
        seen.append(set(all_of(loader)))
    assert seen == [{11}, {12}, {20}]
    assert set(all_of(loader)) == {20}  # until it says something else, as without a loader


class Staged(Numbers):
    """Keeps what it is told under a name of its own."""

    stage = -1

    def set_epoch(self, epoch):
        self.stage = epoch

    def __getitem__(self, index):
        return [index, self.stage, float(torch.rand(1))]


class Growing(SequentialSampler):
    stage = 0

    def set_epoch(self, epoch):
        self.stage = epoch

    def __len__(self):
        return 4 * (self.stage + 1)

    def __iter__(self):
        return iter(range(len(self)))


@BOTH
@pytest.mark.parametrize("stages", [(5, 6), (0, 0, 1, 1), (0, 0, 10, 10, 0), (0.25, 0.5), ("warm", "hot", "hot")])
def test_what_a_script_tells_its_dataset_counts_whatever_it_is_called_and_draws_are_new_each_time(
    feeds, remote, stages
):
    data = Staged(8)
    served = [feeds.serve(2, Staged(8), 4, collate_fn=list)] if remote else []
    loader = feeds.loader(served, data, 4, collate_fn=list)
    draws = []
    for stage in stages:
        data.set_epoch(stage)
        samples = [sample for batch in loader for sample in batch]
        assert [sample[:2] for sample in samples] == [[index, stage] for index in range(8)]
        draws += [sample[2] for sample in samples]
    assert len(set(draws)) == len(draws)


@BOTH
def test_what_a_script_tells_its_sampler_counts_whatever_it_is_called(feeds, remote):
    sampler = Growing(Numbers(16))
    served = [feeds.serve(1, Numbers(16), 4, sampler=Growing(Numbers(16)))] if remote else []
    loader = feeds.loader(served, Numbers(16), 4, sampler=sampler)
    counts = []
    for stage in (0, 0, 1, 1, 3, 2):
        sampler.set_epoch(stage)
        counts.append(len(all_of(loader)))
    assert counts == [4, 4, 8, 8, 16, 12]
    sampler = Growing(Numbers(16))
    untold = feeds.loader([], Numbers(16), 4, sampler=sampler)
    assert [len(all_of(untold)) for _ in range(3)] == [4, 8, 12]


class Wrapped(Numbers):
    def __init__(self, base):
        super().__init__(len(base))
        self.parts = [base]

    def __getitem__(self, index):
        return self.parts[0][index]


class Halved(Staged):
    def set_epoch(self, epoch):
        super().set_epoch(epoch // 2)


class HandingOn(Numbers):
    """Hands on what it lacks."""

    def __init__(self, base):
        super().__init__(len(base), base=base)

    def __getattr__(self, name):
        return getattr(self.__dict__["base"], name) if "base" in self.__dict__ else super().__getattribute__(name)

    def __getitem__(self, index):
        return self.base[index]


class Forwarding(Wrapped):
    def set_epoch(self, epoch):
        self.parts[0].set_epoch(epoch)


@BOTH
@pytest.mark.parametrize(
    ("make", "told", "stages"),
    [
        (lambda: Halved(8), lambda data: data, [3, 4, 4]),
        (lambda: HandingOn(Staged(8)), lambda data: data, [7, 8, 8]),
        (lambda: Forwarding(Staged(8)), lambda data: data.parts[0], [7, 8, 8]),
        (lambda: Forwarding(Staged(8)), lambda data: data, [7, 8, 8]),
    ],
    ids=["by super()", "handed on", "to the one within", "forwarded"],
)
def test_what_a_script_tells_comes_as_it_told_it_through_whatever_is_around(feeds, remote, make, told, stages):
    data = make()
    loader = feeds.loader([feeds.serve(2, make(), 4)] if remote else [], data, 4)
    for epoch, stage in zip((7, 8, None), stages, strict=True):
        if epoch:
            told(data).set_epoch(epoch)
        assert {int(stages) for batch in loader for stages in batch[1]} == {stage}


@BOTH
def test_a_stage_that_is_told_after_a_resume_does_not_move_the_loader(feeds, remote):
    def loader_of(data):
        served = [feeds.serve(1, Staged(8), 2, shuffle=True)] if remote else []
        return feeds.loader(served, data, 2, shuffle=True)

    data = Staged(8)
    loader = loader_of(data)
    data.set_epoch(9)
    expected, states = [], []
    for batch in loader:
        expected.append(batch[0].tolist())
        states.append(loader.state_dict())
    for stage in (9, 20, 1):
        again = Staged(8)
        loader = loader_of(again)
        loader.load_state_dict(states[1])
        again.set_epoch(stage)
        rest = list(loader)
        assert [batch[0].tolist() for batch in rest] == expected[2:]
        assert {float(each) for batch in rest for each in batch[1]} == {stage}


def test_what_cannot_be_told_to_those_who_make_samples_is_refused(feeds):
    data = Staged(8)
    loader = feeds.loader([], data, 4)
    data.set_epoch({"size": 1})
    with pytest.raises(InputError, match=r"set_epoch of Staged with \{'size': 1\}: give it a number or a text"):
        list(loader)


def test_all_of_many_datasets_within_one_are_told_the_epoch(feeds):
    data = ConcatDataset([Curriculum(1) for _ in range(300)])
    loader = feeds.loader([], data, 50)
    assert [set(all_of(loader)) for _ in range(2)] == [{0}, {1}]


@BOTH
def test_an_epoch_that_is_set_on_a_dataset_counts_for_all_its_loaders(feeds, remote):
    data = Curriculum(8)
    train = feeds.loader([feeds.serve(1, Curriculum(8), 4)] if remote else [], data, 4)
    check = train if remote else DataLoader(data, 4)
    for epoch in (3, 4):
        data.set_epoch(epoch)
        assert set(all_of(train)) == {epoch}
        assert set(all_of(check)) == {epoch}


class Shuffled(Numbers):
    """Its epochs have orders of their own, which it draws."""

    def __init__(self, count):
        super().__init__(count)
        self.order = list(range(count))

    def set_epoch(self, epoch):
        self.order = torch.randperm(len(self.order)).tolist()

    def __getitem__(self, index):
        return self.order[index]


@BOTH
def test_what_set_epoch_draws_is_the_same_wherever_samples_are_made(feeds, remote):
    servers = [feeds.serve(2, Shuffled(32), 4) for _ in range(2)] if remote else []
    epochs = [all_of(feeds.loader(servers, Shuffled(32), 4, seed=3)) for _ in range(2)]
    assert sorted(epochs[0]) == list(range(32)) and epochs[0] == epochs[1]


class OfTwo(Curriculum):
    def set_epoch(self, epoch, of):
        raise AssertionError("who calls it is the script")


@BOTH
def test_epochs_reach_datasets_however_they_are_held(feeds, remote):
    data = Wrapped(Curriculum(8))
    loader = feeds.loader([feeds.serve(1, Wrapped(Curriculum(8)), 4)] if remote else [], data, 4)
    data.parts[0].set_epoch(5)
    assert set(all_of(loader)) == {5}
    assert set(all_of(feeds.loader([], OfTwo(8), 4))) == {0}


class MoreThanSaid(BatchSampler):
    def __len__(self):
        return 3


class Endless(SequentialSampler):
    def __iter__(self):
        while True:
            yield from super().__iter__()


def test_all_that_a_sampler_yields_comes_and_of_an_endless_one_as_much_as_its_length(feeds):
    more = MoreThanSaid(SequentialSampler(Draws()), 4, False)
    assert indices(feeds.loader([], Draws(), batch_sampler=more)) == list(range(53))
    assert indices(feeds.loader([], Draws(), 4, sampler=Endless(Draws()))) == list(range(53))


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
