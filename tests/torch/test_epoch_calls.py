"""What a script tells its samplers and datasets by `set_epoch` counts, wherever samples are made."""

import pytest
import torch
from headrace.errors import InputError
from headrace.torch import DataLoader
from torch.utils.data import ConcatDataset, DistributedSampler, SequentialSampler

from tests.torch.draws import Draws, indices
from tests.torch.test_what_people_write import BOTH, Numbers, all_of


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


@pytest.mark.parametrize(("told_at", "warnings"), [((3,), 0), ((0, 1, 2), 1)])
def test_what_a_dataset_is_told_again_and_again_within_a_pass_is_warned_of(feeds, capsys, told_at, warnings):
    data = Curriculum(16)
    loader = feeds.loader([feeds.serve(1, Curriculum(16), 4)], data, 4)
    for _ in range(2):
        for step, _ in enumerate(loader):
            if step in told_at:
                data.set_epoch(step)
    assert capsys.readouterr().out.count("the script has called set_epoch 3 times while it took them") == warnings


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
