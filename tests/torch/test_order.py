"""Which samples a rank takes: of any number, on any number of ranks, from any place on."""

import torch
from headrace.torch.sampling.epoch_plan import Epoch, sample_seed, taken_after
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

counts, batches, worlds = st.integers(1, 60), st.integers(1, 9), st.integers(1, 8)


def taken(count, batch, world, start=0, drop_last=False, steps=None):
    """Positions that all ranks take together, step by step; the first position that is left."""
    ranks = [Epoch(count, batch, rank, world, start, drop_last) for rank in range(world)]
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
def test_another_number_of_ranks_goes_on_at_any_step_and_nothing_is_missing_or_comes_twice(
    count, batch, world, other_world, steps
):
    before, place = taken(count, batch, world, steps=steps)
    after, _ = taken(count, batch, other_world, start=place) if place < count else ([], count)
    assert set(before) | set(after) == set(range(count))
    assert not set(before) & set(after)
    assert len(before) + len(after) - count < max(world, other_world)


@given(counts, worlds, st.booleans())
def test_the_order_is_that_of_torchs_distributed_sampler(count, world, drop_last):
    for rank in range(world):
        theirs = DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop_last)
        own = Epoch(count, 1, rank, world, drop_last=drop_last)
        assert [position for step in range(len(own)) for position in own.positions(step)] == list(theirs)


def test_seeds_of_samples_are_apart():
    seeds = {sample_seed(seed, epoch, place) for seed in range(4) for epoch in range(4) for place in range(500)}
    assert len(seeds) == 4 * 4 * 500
    assert torch.Generator().manual_seed(max(seeds))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=9), worlds, st.integers(0, 60))
def test_how_far_each_part_of_a_stream_is_follows_from_the_steps_of_all_ranks(parts, world, steps):
    """`parts`: batches trained on before, and those that were left."""
    world = min(world, len(parts))
    begun, lengths = [each for each, _ in parts], {number: sum(each) for number, each in enumerate(parts)}
    taken = list(begun)
    for rank in range(world):
        own = range(rank, len(parts), world)
        turns = [part for turn in range(10) for part in own if begun[part] + turn < lengths[part]]
        for part in turns[:steps]:
            taken[part] += 1
    ended = {part: length for part, length in lengths.items() if taken[part] == length}
    assert taken_after(steps, world, begun, ended) == taken
