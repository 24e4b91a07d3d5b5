"""Log events survive the way through a log and back."""

from headrace.events import format_event, parse_event


def test_an_event_comes_back_from_the_middle_of_a_line():
    line = "2026-01-01T00:00:00.000Z algo-1 rank0      " + format_event("step", step_ms=12.345678, n=3)
    event = parse_event(line)
    assert event is not None
    assert event.name == "step"
    assert event.fields == {"step_ms": "12.35", "n": "3"}


def test_values_hold_no_spaces():
    assert format_event("root_cause", message="was killed\nby  SIGKILL") == (
        "headrace event=root_cause message=was_killed_by_SIGKILL"
    )


def test_large_numbers_stay_readable():
    assert format_event("step", samples_per_s=123456.7) == "headrace event=step samples_per_s=123457"


def test_other_lines_are_no_events():
    assert parse_event("headrace is a product") is None
    assert parse_event("") is None
