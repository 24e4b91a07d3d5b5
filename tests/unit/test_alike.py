"""What ranks say of their models, and when rank 0 finds that one is another."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from headrace.tensorflow.alike import KEPT, Comparison, Glance

OURS = Glance(projection=3.5, norm=40.0, learning_rate=0.1, parts=5)
SAME = Glance(projection=3.501, norm=40.0, learning_rate=0.1, parts=5)
OTHER = Glance(projection=-2.0, norm=40.1, learning_rate=0.1, parts=5)
SLOWER = Glance(projection=3.5, norm=40.0, learning_rate=0.05, parts=5)


@pytest.mark.parametrize("glance", [OURS, OTHER, Glance(math.inf, 0.0, 1e-30, 1e6)])
def test_what_is_said_in_a_message_is_heard(glance):
    heard = Glance.unpacked(*glance.packed())
    assert list(vars(heard).values()) == pytest.approx(list(vars(glance).values()))
    assert all(-(2**63) <= each < 2**63 for each in glance.packed())


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_rank_with_another_model_is_named_whoever_speaks_first(order):
    said, comparison = {0: OURS, 1: SAME, 2: OTHER}, Comparison()
    found = [comparison.hears(rank, 1, said[rank]) for rank in order]
    (said,) = filter(None, found)
    assert said.startswith("rank 2's weights are not rank 0's, though")


def test_ranks_may_speak_while_rank_0_compares():
    comparison, epochs, ranks = Comparison(), 200, 100
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as pool:
            heard = pool.submit(lambda: [comparison.hears(r, e, OURS) for e in range(epochs) for r in range(1, ranks)])
            own = [comparison.hears(0, epoch, OURS) for epoch in range(epochs) for _ in range(ranks)]
            assert not any(heard.result() + own)
    finally:
        sys.setswitchinterval(interval)


def test_a_difference_is_told_once():
    comparison = Comparison()
    comparison.hears(0, 1, OURS)
    assert comparison.hears(2, 1, OTHER)
    assert not comparison.hears(3, 1, OTHER)
    assert comparison.over


def test_another_learning_rate_is_told_while_weights_are_still_equal():
    comparison = Comparison()
    comparison.hears(0, 1, OURS)
    said = comparison.hears(3, 1, SLOWER)
    assert said.startswith("rank 3's learning rate is 0.05, and rank 0's is 0.1, though")


def test_ranks_that_have_made_unequal_numbers_of_steps_by_the_end_of_an_epoch_are_told_that():
    comparison = Comparison()
    comparison.hears(0, 1, replace(OURS, steps=10))
    assert not comparison.hears(1, 1, replace(SAME, steps=10))
    assert comparison.hears(2, 1, replace(OTHER, steps=12)).startswith("rank 2 had made 12 steps, and rank 0 10, but")


def test_what_a_rank_says_first_of_a_moment_counts():
    comparison = Comparison()
    assert not comparison.hears(0, 1, OURS)
    assert not comparison.hears(0, 1, OTHER)
    assert not comparison.hears(1, 1, OURS)


def test_ranks_are_compared_at_the_same_moment_only():
    comparison = Comparison()
    assert not comparison.hears(0, 1, OURS)
    assert not comparison.hears(1, 2, OTHER)
    assert comparison.hears(1, 1, OTHER)


def test_weights_that_are_no_numbers_any_more_are_not_called_different():
    comparison, nan = Comparison(), Glance(math.nan, math.nan, 0.1, 5)
    comparison.hears(0, 1, nan)
    assert not comparison.hears(1, 1, nan)


@pytest.mark.parametrize("direction", [1, -1])
def test_moments_of_long_ago_take_no_memory_and_the_latest_are_compared(direction):
    comparison = Comparison()
    for step in range(100):
        comparison.hears(1, direction * step, OTHER)
    assert len(comparison._said) <= KEPT
    assert not comparison.hears(0, 0, OURS)
    assert comparison.hears(0, direction * 99, OURS)


def test_a_rank_that_still_has_a_model_of_before_is_not_compared():
    comparison = Comparison()
    comparison.hears(0, 1, OURS)
    assert not comparison.hears(1, 1, Glance(OTHER.projection, OTHER.norm, OTHER.learning_rate, parts=9))
