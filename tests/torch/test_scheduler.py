"""Assignment of batches to connections that break or are slow, with a fake clock and without sockets."""

import threading

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


def schedule(steps=10, ahead=4, limit_s=10.0, most_bytes=1000):
    clock = Clock()
    return Schedule(str, lambda: steps, limit_s, most_bytes, ahead, clock=clock), clock


def nothing_left(made, process):
    """Return whether there is no step for this process."""
    threading.Timer(0.05, made.close).start()
    return made.take(process) is None


def test_steps_are_given_out_in_order_and_only_so_far_ahead():
    made, _ = schedule(ahead=3)
    assert [made.take("a"), made.take("b"), made.take("a")] == [0, 1, 2]
    assert nothing_left(made, "b")


def test_big_batches_are_asked_for_less_far_ahead():
    made, _ = schedule(ahead=100, steps=100, most_bytes=3000)
    made.came(made.take("a"), "batch", 1000)
    assert [made.take("a"), made.take("a")] == [1, 2]
    assert nothing_left(made, "a")


def test_two_batches_are_asked_for_however_big_they_are():
    made, _ = schedule(most_bytes=3000)
    made.came(made.take("a"), "batch", 1_000_000)
    assert made.take("a") == 1
    assert nothing_left(made, "a")


def test_nothing_is_asked_for_before_a_server_says_how_many_processes_it_has():
    made, _ = schedule(ahead=0)
    connects = threading.Timer(0.05, made.more_ahead, args=(2,))
    connects.start()
    assert [made.take("a"), made.take("a")] == [0, 1]
    assert nothing_left(made, "a")


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
    waiting = threading.Thread(target=made.next)
    waiting.start()
    wait_for(lambda: 0 in made._again, "a second request")
    assert made.take("a") == 1  # not 0 again: it has that
    assert made.take("b") == 0
    made.came(0, "of b")
    waiting.join(60)
    assert not waiting.is_alive()
    made.came(0, "of a, which is late")


def test_what_breaks_every_process_becomes_an_error_in_its_place_though_it_was_asked_for_twice():
    made, clock = schedule(limit_s=1000)
    for number in range(MOST_BREAKS):
        assert made.take(f"p{number}") == 0
        clock.now += 100
        with made._lock:
            made._ask_again_if_late(0)  # as `next` does, which the rank has not called yet
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
    clock.by = 0.15  # seconds pass at each look
    with pytest.raises(DeadlineError, match=r"batch 0 of this rank has not come .*algo-1:6001: Connection refused"):
        made.next()
