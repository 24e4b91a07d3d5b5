"""Log events are read back from a log as they were written."""

import io

from headrace import events
from headrace.events import format_event, keep_output, parse_event, say


def test_an_event_comes_back_from_the_middle_of_a_line():
    line = "2026-01-01T00:00:00.000Z algo-1 rank0      " + format_event("step", step_ms=12.345678, n=3)
    event = parse_event(line)
    assert event is not None
    assert event.name == "step"
    assert event.fields == {"step_ms": "12.35", "n": "3"}


def test_an_event_comes_back_after_a_progress_bar_that_ended_no_line():
    event = parse_event("\x1b[1m1/64\x1b[0m loss: 1.1055" + format_event("first_step", total_steps=64))
    assert event is not None and (event.name, event.fields) == ("first_step", {"total_steps": "64"})


def test_values_hold_no_spaces():
    assert format_event("root_cause", message="was killed\nby  SIGKILL") == (
        "headrace event=root_cause message=was_killed_by_SIGKILL"
    )


def test_large_numbers_stay_readable():
    assert format_event("step", samples_per_s=123456.7) == "headrace event=step samples_per_s=123457"


def test_other_lines_are_no_events():
    assert parse_event("headrace is a product") is None
    assert parse_event("") is None


class Tee:
    """A script's own output stream, which cannot be flushed and fails to write."""

    def write(self, text):
        raise RuntimeError("of the script's")


def test_events_go_where_output_went_at_first_whatever_the_script_puts_in_its_place(monkeypatch, capsys):
    monkeypatch.setattr(events, "_kept", [])
    keep_output()
    for own in (io.StringIO(), Tee()):
        with monkeypatch.context() as within:
            within.setattr("sys.stdout", own)
            say("checkpoint", epoch=3)
        assert capsys.readouterr().out == "headrace event=checkpoint epoch=3\n"
    monkeypatch.setattr(events, "_kept", [])
    with monkeypatch.context() as within:
        within.setattr("sys.stdout", Tee())
        say("step")  # outside of jobs
