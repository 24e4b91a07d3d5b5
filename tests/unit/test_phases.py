"""The status line shows how far a job is, from set-up to its end."""

import io

import pytest
from headrace.events import Event, parse_event
from headrace.job.phases import Phases
from headrace.terminal.display import Display


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def told(*lines, hosts=3, workers=3, after_s=125.0):
    clock = Clock()
    phases = Phases(hosts, workers, clock)
    clock.now = after_s
    for host, line in lines:
        phases.take(host, parse_event(f"headrace event={line}"))
    return phases.text()


def test_phases_from_set_up_to_the_end():
    lines = [("algo-1", "topology host=algo-1"), ("algo-2", "topology host=algo-2")]
    assert told() == "2:05 set-up · hosts 0/3 · workers 0/3"
    assert told(*lines) == "2:05 hosts · hosts 2/3 · workers 0/3"
    lines += [("algo-1", "server_ready name=worker port=6001"), ("algo-2", "server_ready name=worker port=6001"),
              ("algo-1", "server_ready name=dispatcher port=6000"), ("algo-3", "training_started hosts=1")]  # fmt: skip
    assert told(*lines) == "2:05 trainer starts · workers 2/3"
    lines += [("algo-3", "ideal_step step_ms=50"), ("algo-3", "first_step total_steps=440")]
    assert told(*lines) == "2:05 training"
    lines += [("algo-3", "step step=120 step_ms=87.5 samples_per_s=9"), ("algo-3", "checkpoint epoch=1 path=x")]
    assert told(*lines) == "2:05 training · step 120 of 440 · 88 ms a step · 0:28 left · checkpoint of epoch 1"
    lines += [("algo-3", "training_finished status=succeeded")]
    assert told(*lines, after_s=3725.0) == "1:02:05 succeeded · checkpoint of epoch 1"


def test_a_worker_that_is_started_again_counts_once():
    ready = ("algo-1", "server_ready name=worker-0 port=6001")
    assert "workers 1/3" in told(ready, ready)


def test_a_local_job_of_unknown_length_shows_what_it_knows():
    text = told(("algo-1", "first_step"), ("algo-1", "step step=7 step_ms=20"), hosts=1, workers=0)
    assert text == "2:05 training · step 7 · 20 ms a step"


@pytest.mark.parametrize(
    "fields", ["step=x step_ms=y", "step=-1 step_ms=nan", "step=3 step_ms=nan", "step=3 step_ms=inf", ""]
)
def test_nonsense_in_an_event_breaks_nothing(fields):
    assert told(("algo-1", "first_step total_steps=100"), ("algo-1", f"step {fields}"))


def test_only_a_change_of_phase_is_news():
    phases = Phases(1, 0)
    assert phases.take("algo-1", Event("topology", {}))
    assert not phases.take("algo-1", Event("topology", {}))


def test_without_a_terminal_lines_are_as_they_are():
    stream = io.StringIO()
    with Display(stream, lambda: "status") as display:
        display.line("\033[1mone\033[0m [two]")
    assert stream.getvalue() == "\033[1mone\033[0m [two]\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_status_stays_below_the_lines_and_is_gone_in_the_end(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Display(stream, lambda: "training, step 7") as display:
        display.line("a line " + "x" * 300)
        monkeypatch.setattr("headrace.terminal.display.ask", lambda _: stream.write("asked\n") > 0)
        shown = stream.getvalue()
        assert display.ask("Stop?")
        display.line("another [line]")
    written = stream.getvalue()
    assert "training, step 7" in shown
    assert "a line " + "x" * 300 in written and "another [line]" in written  # not wrapped, no markup
    assert written.rstrip("\r\n").endswith(("\033[2K", "\033[?25h"))  # the line is erased, the cursor is back


def test_a_host_that_ends_alone_does_not_end_the_job_on_the_screen():
    lines = [("algo-3", "training_started hosts=1"), ("algo-3", "first_step"), ("algo-2", "outcome status=failed")]
    assert told(*lines).startswith("2:05 training")
    assert told(*lines, ("algo-3", "step step=9 step_ms=10")).startswith("2:05 training · step 9")
    assert told(("algo-1", "topology host=algo-1"), ("algo-1", "outcome status=failed")).startswith("2:05 failed")


class Latin(Terminal):
    encoding = "latin-1"


class Gone(Terminal):
    def write(self, text):
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("stream", [Latin(), Gone()], ids=["no such characters", "gone"])
def test_a_terminal_that_cannot_show_the_line_costs_nothing(stream, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    with Display(stream, lambda: "training") as display:
        display.line("a line")
        assert not display.ask("Stop?")
        display.line("another")
    if isinstance(stream, Latin):
        assert stream.getvalue() == "a line\nanother\n"
