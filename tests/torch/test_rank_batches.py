"""The positions of an epoch that each rank takes, for any size, any number of ranks and any start."""

from headrace.torch.sampling.rank_batches import EpochPlan
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

counts, batches, worlds = st.integers(1, 60), st.integers(1, 9), st.integers(1, 8)


def taken(count, batch, world, start=0, drop_last=False, steps=None):
    """Return the positions that all ranks take together, step by step, and the first position that is left."""
    ranks = [EpochPlan(range(count), batch, rank, world, start, drop_last) for rank in range(world)]
    assert len({len(each) for each in ranks}) == 1, "ranks make different numbers of steps"
    number = len(ranks[0]) if steps is None else min(steps, len(ranks[0]))
    found = [position for step in range(number) for each in ranks for position in each.positions(step)]
    return found, ranks[0].position_after(number)


@given(counts, batches, worlds)
def test_every_position_comes_and_at_most_one_less_than_the_ranks_come_twice(count, batch, world):
    found, left = taken(count, batch, world)
    assert sorted(set(found)) == list(range(count)) and left == count
    assert len(found) - count < world


@given(counts, batches, worlds)
def test_with_drop_last_nothing_comes_twice_and_less_than_a_step_of_all_ranks_is_missing(count, batch, world):
    found, _ = taken(count, batch, world, drop_last=True)
    assert len(found) == len(set(found)) and count - len(found) < batch * world


@given(counts, batches, worlds, worlds, st.integers(0, 20))
def test_another_number_of_ranks_goes_on_at_any_step_and_what_repeats_is_the_epochs_beginning(
    count, batch, world, other_world, steps
):
    before, place = taken(count, batch, world, steps=steps)
    after, _ = taken(count, batch, other_world, start=place) if place < count else ([], count)
    repeats = len(before) + len(after) - count
    assert repeats < max(world, other_world)
    assert sorted(before + after) == sorted([*range(count), *(each % count for each in range(repeats))])


@given(counts, batches, worlds, st.integers(0, 20))
def test_the_steps_after_a_resume_are_those_that_would_have_followed(count, batch, world, steps):
    for rank in range(world):
        whole = EpochPlan(range(count), batch, rank, world)
        done = min(steps, len(whole))
        rest = EpochPlan(range(count), batch, rank, world, start=whole.position_after(done))
        expected = [whole.positions(step) for step in range(done, len(whole))]
        assert [rest.positions(step) for step in range(len(rest))] == expected


@given(counts, worlds, st.booleans())
def test_the_order_is_that_of_torchs_distributed_sampler(count, world, drop_last):
    for rank in range(world):
        theirs = DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop_last)
        own = EpochPlan(range(count), 1, rank, world, drop_last=drop_last)
        assert [position for step in range(len(own)) for position in own.positions(step)] == list(theirs)
