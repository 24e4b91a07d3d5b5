"""Ranks take the samples of an epoch in turn, also if training resumes in the middle of the epoch."""

from headrace.torch.sampling.rank_batches import EpochPlan
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

counts, batches, worlds = st.integers(1, 60), st.integers(1, 9), st.integers(1, 8)


@given(counts, batches, worlds, st.integers(0, 60), st.booleans())
def test_ranks_take_what_is_left_in_turn_and_then_repeat_the_epochs_beginning_or_with_drop_last_drop_the_end(
    count, batch, world, start, drop_last
):
    start = min(start, count)
    left = count - start
    of_a_rank = left // world // batch * batch if drop_last else -(-left // world)
    for rank in range(world):
        plan = EpochPlan(range(count), batch, rank, world, start, drop_last)
        taken = [(start + rank + world * place) % count for place in range(of_a_rank)]
        expected = [taken[first : first + batch] for first in range(0, of_a_rank, batch)]
        assert [plan.positions(step) for step in range(len(plan))] == expected
        for step in range(len(plan) + 1):
            assert plan.position_after(step) == min(start + world * batch * step, count)


@given(counts, worlds, st.booleans())
def test_the_order_is_that_of_torchs_distributed_sampler(count, world, drop_last):
    for rank in range(world):
        theirs = DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop_last)
        own = EpochPlan(range(count), 1, rank, world, drop_last=drop_last)
        assert [position for step in range(len(own)) for position in own.positions(step)] == list(theirs)
