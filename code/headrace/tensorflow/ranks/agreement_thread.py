"""Where a rank's agreements on ends of streams are kept: one thread that owns them, and the messages between ranks.

All other threads only put notes into its inbox, and take no lock: tf.data's, those of the messages, and whichever
thread happens to collect an iterator that nobody holds any more.
"""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable

import tensorflow as tf

from headrace.events import keep_going
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.agreement import Agreement, Pass
from headrace.tensorflow.ranks.messages import Numbers, Post
from headrace.tensorflow.ranks.stream_passes import Note, Stream

LOOK_EVERY_S = 1.0
STOP_S = 2.0
"""How long Python's end waits for this thread, which is in TensorFlow now and then."""
_READS = 2
"""A message's last number: this rank trains with the pass. Otherwise 1 if it has ended, and 0."""
_OTHER = -1
"""A message's first number where it is no stream's."""


class _AgreementThread:
    """All agreements of this rank."""

    def __init__(self) -> None:
        # Destructors may put into it; None: this is the end.
        self.inbox: queue.SimpleQueue[tuple[Stream | int, Note] | None] = queue.SimpleQueue()
        self.streams: list[Stream] = []
        self.gone: set[int] = set()
        """Ranks whose scripts have ended."""
        self._agreements: dict[Stream, Agreement] = {}
        self._early: list[tuple[int, Note]] = []
        self._post = Post(self._take, self._rank_gone)
        self.thread = threading.Thread(target=self._run, name="ends of streams", daemon=True)
        self.thread.start()

    def open(self, name: str, uneven: str) -> Stream:
        """A stream that this rank takes part in."""
        stream = Stream(name, uneven, self)
        self._agreements[stream] = Agreement(name, uneven, collectives.size(), collectives.rank(), self.gone)
        self.inbox.put((stream, lambda _: self.streams.append(stream)))
        return stream

    def _rank_gone(self, rank: int) -> None:
        for each in range(collectives.size()) if rank == 0 else (rank,):  # what others say comes by rank 0
            self.gone.add(each)
        for stream in self.streams.copy():
            self.inbox.put((stream, lambda _: None))

    def tell(self, first: int, second: int, third: int) -> None:
        """Tell the others what no stream says."""
        self._post.tell((_OTHER, first, second, third))

    def tell_reading(self, stream: Stream, number: int, began: int) -> None:
        """Tell the others which pass this rank trains with."""
        self._post.tell((self.streams.index(stream), number, began, _READS))

    def _take(self, rank: int, numbers: Numbers) -> None:
        index, number, count, kind = numbers
        if index == _OTHER:
            for each in _listeners:
                each(rank, number, count, kind)
        elif kind == _READS:
            self.inbox.put((index, lambda agreement: agreement.reads(rank, number, count)))
        else:
            said = Pass(number, count, bool(kind))
            self.inbox.put((index, lambda agreement: agreement.heard(rank, said)))

    def _run(self) -> None:
        waiting = False
        while True:
            try:
                note = self.inbox.get(timeout=LOOK_EVERY_S if waiting else None)
            except queue.Empty:
                for stream in self.streams:
                    with keep_going():
                        self._deliver(stream, lambda _: None)  # what waits may have waited long enough
            else:
                if note is None:
                    return
                with keep_going():
                    self._deliver(*note)
            waiting = sum(agreement.still_waits() for agreement in self._agreements.copy().values()) > 0

    def _deliver(self, whose: Stream | int, what: Note) -> None:
        if isinstance(whose, int):
            if whose >= len(self.streams):
                self._early.append((whose, what))  # of a stream that this rank has not joined yet
                return
            whose = self.streams[whose]
        agreement, joined = self._agreements[whose], len(self.streams)
        agreement.had(dict(whose.had))
        made = what(agreement) or []
        whose.somebody_ended, whose.others_read = agreement.somebody_ended, agreement.others_read
        agreement.had(dict(whose.had))  # once more: who had a batch before that was set has not said so
        index = self.streams.index(whose)
        for each in agreement.news():
            self._post.tell((index, each.number, each.batches, int(each.ended)))
        for number, goes_on in (*made, *agreement.decisions()):
            whose.decisions.enqueue([tf.constant(number, tf.int64), tf.constant(goes_on)])
        if len(self.streams) > joined:
            early, self._early = self._early, []
            for each_index, each_what in early:
                self._deliver(each_index, each_what)


_thread: list[_AgreementThread] = []
_listeners: list[Callable[[int, int, int, int], None]] = []


@atexit.register
def _stop() -> None:
    """Registered before the iterators' end, so after it. By then others know that this rank has gone."""
    for each in _thread:
        each.inbox.put(None)
        each.thread.join(STOP_S)


def tell(first: int, second: int, third: int) -> None:
    """Three numbers for the listeners of all other ranks, once messages have begun; before that nobody is told."""
    for each in _thread:
        each.tell(first, second, third)


def listen(heard: Callable[[int, int, int, int], None]) -> None:
    """From now on it gets a rank and the three numbers that it tells, in a thread of the messages."""
    _listeners.append(heard)


def begin() -> None:
    """From now on ranks can tell each other something. Every rank must call it, and those that do once more may."""
    if not _thread:
        _thread.append(_AgreementThread())


def decide_anew() -> None:
    """What a wait depends on has changed."""
    for stream in _thread[0].streams.copy() if _thread else ():
        _thread[0].inbox.put((stream, lambda _: None))


def forget_repeated() -> None:
    """`repeated` tells of passes that begin from now on."""
    for stream in _thread[0].streams if _thread else ():
        stream.repeated = 0


def repeated() -> dict[str, int]:
    """How many batches this rank has taken again, of streams of which it has."""
    return {each.name: each.repeated for each in (_thread[0].streams if _thread else ()) if each.repeated}


def join(name: str, uneven: str) -> Stream:
    """This rank's part in agreeing on the ends of a stream. Every rank must call it, in the same order."""
    begin()
    return _thread[0].open(name, uneven)
