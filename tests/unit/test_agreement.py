"""Ends of streams that ranks agree on, as messages between agreements: no threads, no sockets."""

import itertools
import random

import pytest
from headrace.tensorflow.ranks.agreement import Agreement, Pass


class Rank:
    """Reads a stream as ends.py does: hands batches out at once, or when it is decided that all ranks have them."""

    def __init__(self, number, batches, uneven, ranks, pads=True):
        self.number, self.batches, self.uneven, self.pads = number, batches, uneven, pads
        self.agreement = Agreement("train", uneven, ranks, number)
        self.decided, self.handed_out = [], {}
        self.passes = self.at = 0
        self.waiting = self.over = False

    def begin(self):
        self.passes += 1
        self.at, self.waiting, self.over = 0, False, False
        self.decided += self.agreement.began(self.passes, self.handed_out)

    def read(self):
        """One batch more, if it may be had now; whether anything was done."""
        if self.over:
            return False
        if not self.waiting:
            here = self.at < self.batches
            if here and self.uneven == "pad" and self.at != 1:
                self.at += 1
                self.handed_out = {self.passes: self.at}  # told with the next note, not at once
            else:
                self.waiting = True
                self.decided += self.agreement.waits(self.passes, self.at, here, lambda: self.pads)
            return True
        answers = [goes_on for number, goes_on in self.decided if number == self.passes]
        self.decided = []
        if not answers:
            return False
        self.waiting = False
        self.at, self.over = self.at + answers[0], not answers[0]
        return True


def run(ranks, chance, give_up_at=None):
    """Let ranks act and messages travel in any order, each sender's in its own; until nothing moves."""
    links = {(a, b): [] for a, b in itertools.permutations(range(len(ranks)), 2)}
    while True:
        acts = [rank.read for rank in ranks]
        acts += [lambda link=link: deliver(ranks, links, link) for link in links if links[link]]
        chance.shuffle(acts)
        moved = False
        for act in acts:
            moved |= bool(act())
            for rank in ranks:
                if give_up_at is not None and rank.number == 0 and rank.at == give_up_at and not rank.over:
                    rank.agreement.had(rank.handed_out)
                    rank.agreement.left(rank.passes)
                    rank.over, rank.waiting = True, False
                if rank.agreement.somebody_ended:
                    rank.agreement.had(rank.handed_out)
                rank.decided += rank.agreement.decisions()
                for said in rank.agreement.news():
                    for other in range(len(ranks)):
                        if other != rank.number:
                            links[rank.number, other].append(said)
        if not moved and not any(links.values()):
            return


def deliver(ranks, links, link):
    ranks[link[1]].agreement.heard(link[0], links[link].pop(0))
    return True


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_all_ranks_get_the_same_number_of_batches_whatever_the_order_of_messages(uneven, seed):
    chance = random.Random(seed)
    counts = [chance.randint(1, 6) for _ in range(chance.randint(2, 4))]
    ranks = [Rank(number, count, uneven, len(counts)) for number, count in enumerate(counts)]
    for _ in range(3):
        for rank in ranks:
            rank.begin()
        run(ranks, chance)
        assert [rank.at for rank in ranks] == [max(counts) if uneven == "pad" else min(counts)] * len(ranks)


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_need_not_make_as_many_steps_as_others_gets_no_batch_twice(seed):
    chance = random.Random(seed)
    counts = [chance.randint(1, 6) for _ in range(chance.randint(2, 4))]
    ranks = [Rank(number, count, "pad", len(counts), pads=False) for number, count in enumerate(counts)]
    for _ in range(2):
        for rank in ranks:
            rank.begin()
        run(ranks, chance)
        assert [rank.at for rank in ranks] == counts and all(rank.over for rank in ranks)


def test_a_last_batch_waits_until_it_is_known_whether_it_comes_again():
    agreement, pads = Agreement("held_out", "pad", ranks=2, rank=0), [None]
    agreement.began(1, {})
    agreement.heard(1, Pass(1, 6))
    agreement.waits(1, 5, False, lambda: pads[0])
    assert agreement.decisions() == []
    pads[0] = False
    assert agreement.decisions() == [(1, False)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_a_rank_that_gives_up_a_pass_leaves_nobody_waiting(uneven, seed):
    chance = random.Random(seed)
    ranks = [Rank(number, 5, uneven, 3) for number in range(3)]
    for _ in range(2):
        for rank in ranks:
            rank.begin()
        run(ranks, chance, give_up_at=2)
        assert all(rank.over and not rank.waiting for rank in ranks)


def test_who_waits_in_an_older_pass_is_released_when_a_new_one_begins():
    agreement = Agreement("train", "drop", ranks=2, rank=0)
    agreement.began(1, {})
    assert agreement.waits(1, 0, here=True) == []
    assert agreement.began(2, {}) == [(1, False)]
    assert agreement.waits(1, 1, here=True) == [(1, False)]


def test_what_was_handed_out_before_a_pass_was_given_up_is_told():
    agreement = Agreement("train", "pad", ranks=2, rank=0)
    agreement.began(1, {})
    agreement.news()
    agreement.began(2, {1: 5})
    assert Pass(1, 5, ended=True) in agreement.news()


def test_an_older_message_takes_nothing_back():
    agreement = Agreement("train", "pad", ranks=2, rank=0)
    agreement.began(1, {})
    agreement.heard(1, Pass(1, 5, ended=True))
    agreement.heard(1, Pass(1, 0))
    agreement.waits(1, 5, here=False)
    assert agreement.decisions() == [(1, False)]
