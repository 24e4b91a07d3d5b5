"""Measure the feed's gain from a second processor, for bench/torch_feed.py.

There are two cases. In the case "feed", a feed server with two processes makes batches for a consumer. In the case
"going nowhere", two processes make the same batches, but send them nowhere. This case shows the gain without a feed.
Each case has three rates: on one processor, on the other processor, and on both. The program measures the rates in
turns of a few seconds, so that changes of the machine's speed affect all three rates alike.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from bench import measure

HEAVY = Path(__file__).parent / "torch_heavy.py"
MANY = 2_000_000
SETTLE_S, TURN_S = 1.0, 4.0
FIRST_BATCHES_S = 60.0


def rates(turns, environ, feed_server):
    """Measure the cases "feed" and "going nowhere" (make batches, but send them nowhere). Return a list for each case.

    The list has one item for each turn. An item is three rates in images per second: on one processor, on the other
    processor, and on both.

    Args:
        turns: number of turns.
        environ: the processes' environment.
        feed_server: the function `feed_server` of bench/torch_feed.py.
    """
    places = measure.two_processors()
    found = {}
    with feed_server([HEAVY, "feed", str(MANY), "2"], *places) as feeds, _tellers(["feed"], environ | feeds) as tellers:
        found["feed"] = [_by_turns(tellers, places) for _ in range(turns)]
    with _tellers(["bare", "bare"], environ) as tellers:
        found["going nowhere"] = [_by_turns(tellers, places) for _ in range(turns)]
    return found


def gain(of_turns):
    """Return the median over turns: rate on two processors ÷ sum of the rates on each one alone. 1 is a full gain."""
    return measure.median([both / (one + other) for one, other, both in of_turns])


class _Teller:
    """A process that prints the time of each batch. This object keeps the lines."""

    def __init__(self, way, environ):
        command = [sys.executable, str(HEAVY), way, str(MANY), "2", "--tell"]
        self.process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        self.told = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            at, count = line.split()
            self.told.append((float(at), int(count)))

    def rate(self, since, until):
        """Return images per second between the first and the last batch in an interval."""
        (began, before), *_, (ended, after) = [each for each in list(self.told) if since <= each[0] <= until]
        return (after - before) / (ended - began)


@contextlib.contextmanager
def _tellers(ways, environ):
    tellers = [_Teller(way, environ) for way in ways]
    try:
        deadline = time.monotonic() + FIRST_BATCHES_S
        while not all(each.told for each in tellers):
            if time.monotonic() > deadline or any(each.process.poll() is not None for each in tellers):
                raise SystemExit("bench: error: no batch came")
            time.sleep(0.1)
        yield tellers
    finally:
        for each in tellers:
            each.process.kill()
            each.process.wait()


def _by_turns(tellers, places):
    first, second = places
    return tuple(_on(tellers, each) for each in ({first}, {second}, {first, second}))


def _on(tellers, processors):
    for process in psutil.Process().children(recursive=True):
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), processors)
    time.sleep(SETTLE_S)
    began = time.monotonic()
    time.sleep(TURN_S)
    return sum(each.rate(began, time.monotonic()) for each in tellers)
