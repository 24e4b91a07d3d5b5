"""Assignment of batches to connections that break or are slow, with a fake clock and without sockets."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace.errors import DeadlineError
from headrace.torch.feed.scheduler import FIRST_PATIENCE_S, MOST_BREAKS, Schedule
from headrace.torch.fetch.map_fetcher import SampleError

from tests.support import wait_for


class Clock:
    def __init__(self):
        self.now = self.by = 0.0

    def __call__(self):
        self.now += self.by
        return self.now


def schedule(ahead=4, limit_s=10.0):
    clock = Clock()
    return Schedule(str, lambda: 10, limit_s, 1000, ahead, clock=clock), clock


def test_steps_are_given_out_in_order_and_only_so_far_ahead():
    made, _ = schedule(ahead=3)
    assert [made.take("a"), made.take("b"), made.take("a"), made.take("b", wait=False)] == [0, 1, 2, None]


def test_nothing_is_asked_for_before_a_server_says_how_many_processes_it_has():
    made, _ = schedule(ahead=0)
    assert made.take("a", wait=False) is None
    waits = ThreadPoolExecutor().submit(made.take, "a")
    made.more_ahead(2)
    assert [waits.result(60), made.take("a"), made.take("a", wait=False)] == [0, 1, None]


def test_a_broken_batch_is_made_next_by_whoever_is_free():
    made, _ = schedule()
    assert made.take("a") == 0 and made.take("b") == 1
    made.broke(0, "a", "reset")
    assert made.take("b") == 0
    made.came(0, "batch")
    assert made.next() == "batch"


def test_a_late_batch_is_asked_for_again_elsewhere_and_the_first_answer_counts():
    made, clock = schedule(limit_s=100)
    assert made.take("a") == 0
    clock.now = FIRST_PATIENCE_S + 1
    waits = ThreadPoolExecutor().submit(made.next)
    wait_for(lambda: 0 in made._again, "a second request")
    assert made.take("a") == 1  # not 0 again: "a" still makes 0
    assert made.take("b") == 0
    made.came(0, "of b")
    assert waits.result(60) == "of b"
    made.came(0, "of a, which is late")


def test_what_breaks_every_process_becomes_an_error_in_its_place_though_it_was_asked_for_twice():
    made, clock = schedule(limit_s=1000)
    for number in range(MOST_BREAKS):
        assert made.take(f"p{number}") == 0
        clock.now += 100
        with made._lock:
            made._ask_again_if_late(0)  # `next` would do this, but the rank has not called it yet
        made.broke(0, f"p{number}", "reset")
    with pytest.raises(SampleError, match="ended while they made batch 0"):
        made.next()
    assert made.take("q") == 1


def test_a_process_that_is_only_silent_does_not_count_as_ended():
    made, clock = schedule(limit_s=1000)
    for number in range(2 * MOST_BREAKS):
        assert made.take(f"p{number}") == 0
        clock.now += 100
        made.broke(0, f"p{number}", TimeoutError())
    assert made.take("another", wait=False) == 0


def test_a_batch_whose_makers_all_end_at_once_is_still_made():
    made, _ = schedule()
    for number in range(3 * MOST_BREAKS):
        assert made.take(f"p{number}") == 0
        made.broke(0, f"p{number}", "its host has gone")
    assert made.take("another") == 0


def test_what_comes_after_the_epoch_is_closed_changes_nothing():
    made, _ = schedule()
    assert [made.take("a"), made.take("b")] == [0, 1]
    made.close()
    made.came(0, "batch", 1000)
    made.broke(1, "b", "reset")
    assert made.take("a") is None and made.take("c") is None
    assert not made._come and not made._again and not made._problems


def test_nothing_within_the_limit_is_an_error_that_names_the_servers():
    made, clock = schedule(limit_s=0.2)
    made.problem("algo-1:6001", "Connection refused")
    clock.by = 0.15  # seconds that pass whenever the clock is read
    with pytest.raises(DeadlineError, match=r"batch 0 of this rank has not come .*algo-1:6001: Connection refused"):
        made.next()
