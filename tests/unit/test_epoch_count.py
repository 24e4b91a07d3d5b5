"""Epochs end for all ranks at once. The tests pass messages between ranks and rank 0 without threads or sockets."""

import random

import pytest
from headrace.tensorflow.ranks import epoch_count
from headrace.tensorflow.ranks.epoch_count import ALL_ENDED, ENDED, SOME_ENDED, STARTED, EpochCounter


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """Remove the limit on waits for the ranks' first batches. If the machine pauses, a test could exceed the limit."""
    monkeypatch.setattr(epoch_count, "FIRST_PATIENCE_S", 1e9)


class Rank:
    """A rank that reads as epoch_end.py does. `uneven` is "drop" or "pad", as in `data.distribute`."""

    def __init__(self, number, batches, uneven):
        self.number, self.batches, self.uneven = number, batches, uneven
        self.sent, self.heard = [], {}
        self.epoch = 0

    def begin(self):
        self.epoch += 1
        self.at, self.own, self.over, self.told_end = 0, 0, False, False

    def tell(self, batches, what=0):
        self.sent.append((0, self.epoch, batches, what))

    def hear(self, numbers):
        _, epoch, limit, flags = numbers
        self.heard[epoch] = limit, flags
        if epoch == self.epoch and flags & SOME_ENDED and self.own:
            self.tell(self.own)

    def read(self):
        """Take one more batch, if the rank may; return whether the rank did anything."""
        limit, flags = self.heard.get(self.epoch, (0, 0))
        if self.over:
            return False
        if self.at < self.batches:
            if self.own == self.at:
                self.own += 1
                if self.uneven == "drop" or self.own == 1 or flags & SOME_ENDED:
                    self.tell(self.own)
                return True
            if self.uneven == "drop" and limit <= self.at and not flags & ALL_ENDED:
                return False
            if self.uneven == "pad" and self.at == 1 and not flags & STARTED:
                return False
            self.over = self.uneven == "drop" and limit <= self.at
        else:
            if not self.told_end:
                self.told_end = True
                self.tell(self.at, ENDED)
                return True
            if self.uneven == "pad" and limit <= self.at and not flags & ALL_ENDED:
                return False
            self.over = self.uneven == "drop" or limit <= self.at
        self.at += not self.over
        if self.over:
            self.tell(self.own, ENDED)
        return True


def run(ranks, counter, chance, give_up_at=None):
    """Let ranks read and messages arrive in random order until nothing changes. Each rank's messages stay in order."""
    to_ranks = {rank.number: [] for rank in ranks}

    def to_rank_0(rank):
        if rank.sent:
            for answer in counter.hear(rank.number, rank.sent.pop(0)):
                for each in to_ranks.values():
                    each.append(answer)
            return True
        return False

    def to_rank(rank):
        if to_ranks[rank.number]:
            rank.hear(to_ranks[rank.number].pop(0))
            return True
        return False

    moved = True
    while moved:
        acts = [(act, rank) for rank in ranks for act in (Rank.read, to_rank_0, to_rank)]
        chance.shuffle(acts)
        moved = False
        for act, rank in acts:
            moved |= bool(act(rank))
            if give_up_at is not None and rank.number == 0 and rank.at == give_up_at and not rank.over:
                rank.over = True
                rank.tell(rank.own, ENDED)


def job(chance, uneven, ranks, count):
    counter = EpochCounter(ranks, [("train", uneven)])
    return [Rank(number, count(), uneven) for number in range(ranks)], counter


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_all_ranks_get_the_same_number_of_batches_whatever_the_order_of_messages(uneven, seed):
    chance = random.Random(seed)
    ranks, counter = job(chance, uneven, chance.randint(2, 4), lambda: chance.randint(1, 6))
    for _ in range(3):
        for rank in ranks:
            rank.begin()
        run(ranks, counter, chance)
        counts = [rank.batches for rank in ranks]
        assert [rank.at for rank in ranks] == [max(counts) if uneven == "pad" else min(counts)] * len(counts)
        assert all(rank.over for rank in ranks)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_a_rank_that_gives_up_an_epoch_leaves_nobody_waiting(uneven, seed):
    chance = random.Random(seed)
    ranks, counter = job(chance, uneven, 3, lambda: 5)
    for _ in range(2):
        for rank in ranks:
            rank.begin()
        run(ranks, counter, chance, give_up_at=2)
        assert all(rank.over for rank in ranks)


def test_what_a_rank_says_of_an_epoch_that_is_over_changes_nothing():
    counter = EpochCounter(2, [("train", "pad")])
    assert [*counter.hear(0, (0, 1, 3, ENDED)), *counter.hear(1, (0, 1, 3, ENDED))][-1][2:] == (3, 7)
    assert counter.hear(1, (0, 1, 3, ENDED)) == []


def test_a_rank_whose_script_has_ended_is_waited_for_by_nobody():
    counter = EpochCounter(2, [("train", "pad")])
    counter.hear(0, (0, 1, 4, ENDED))
    assert counter.hear(1, None) == [(0, 1, 4, STARTED | SOME_ENDED | ALL_ENDED)]


def test_with_drop_there_are_as_many_answers_as_steps_and_not_as_many_as_messages():
    ranks, steps = 8, 20
    counter = EpochCounter(ranks, [("train", "drop")])
    answers = [counter.hear(rank, (0, 1, step + 1, 0)) for step in range(steps) for rank in range(ranks)]
    assert sum(map(len, answers)) == steps


def test_a_second_batch_waits_for_the_others_first_but_not_for_ever(monkeypatch):
    counter = EpochCounter(2, [("train", "pad")])
    assert counter.hear(0, (0, 1, 1, 0)) == []
    monkeypatch.setattr(epoch_count, "FIRST_PATIENCE_S", 0.0)
    assert counter.hear(-1, None) == [(0, 1, 0, STARTED)]


def test_who_is_waited_for_at_an_end_is_said_once_with_why(monkeypatch, capfd):
    counter = EpochCounter(2, [("val", "pad")])
    counter.hear(1, (0, 2, 1, 0))
    counter.hear(0, (0, 1, 4, ENDED))
    monkeypatch.setattr(epoch_count, "SAY_AFTER_S", 0.0)
    for _ in range(2):
        counter.hear(-1, None)
    said = capfd.readouterr().out
    assert said.count("event=waits_for_ends stream=val rank=0 batches=4 ranks=1") == 1
    assert "rank 0 is in pass 1, rank 1 in pass 2: all ranks must iterate over the stream equally often" in said
