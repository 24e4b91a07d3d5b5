"""Where a rank's agreements on ends of streams are kept: one thread that owns them, and the messages between ranks.

All other threads only put notes into its inbox, and take no lock: tf.data's, those of the messages, and whichever
thread happens to collect an iterator that nobody holds any more.
"""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.events import keep_going
from headrace.tensorflow import progress, world
from headrace.tensorflow.agreement import Agreement, Pass
from headrace.tensorflow.rank_messages import Numbers, Post

LOOK_EVERY_S = 1.0
STOP_S = 2.0
"""How long Python's end waits for this thread, which is in TensorFlow now and then."""
SURE_AFTER_STEPS = 8
"""Training steps by which a rank has begun a pass that another one has begun: they begin it at the same step."""
_READS = 2
"""A message's last number: this rank trains with the pass. Otherwise 1 if it has ended, and 0."""
_OTHER = -1
"""A message's first number where it is no stream's."""
_Note = Callable[[Agreement], list[tuple[int, bool]] | None]
"""Something that has happened; may make decisions."""


class Stream:
    """One stream, as tf.data's threads see it."""

    def __init__(self, name: str, uneven: str, thread: _AgreementThread) -> None:
        self.name, self.uneven = name, uneven
        self.decisions = tf.queue.FIFOQueue(-1, [tf.int64, tf.bool], [[], []])
        """The number of a pass, and whether the batch that it waits for is for all ranks."""
        self.somebody_ended = False
        self.had: dict[int, int] = {}
        """Batches so far, of the newest pass at least."""
        self.others_read: dict[int, tuple[int, int]] = {}
        """By rank, as `Agreement.others_read`."""
        self._owner = thread
        self._numbers = itertools.count(1)
        self._newest = 0
        self._began: dict[int, int] = {}
        self._told: set[int] = set()

    def endless(self) -> Iterator[np.int64]:
        """The number of a pass that begins, and that has no end to agree on."""
        yield self._begins()

    def _begins(self) -> np.int64:
        number, steps = next(self._numbers), progress.steps()  # two passes may begin at once, in two threads
        self._began[number], self._newest = steps, number
        return np.int64(number)

    def passes(self) -> Iterator[np.int64]:
        """The number of a pass that begins; it is over when TensorFlow drops this generator, with the iterator."""
        before, begun = self.had, self._begins()
        number = int(begun)
        self.had = {number: 0}
        self._tell(lambda agreement: agreement.began(number, before))
        try:
            yield begun
        finally:
            self._tell(lambda agreement: agreement.left(number))

    def arrived(self, number: np.int64, at: np.int64, here: np.bool_) -> np.bool_:
        """Batch `at` of a pass is here, or will not come; whether its reader must wait for a decision.

        Raises:
            InputError: this rank had none at all, or reads a pass after it has begun another.
        """
        of_pass, place, is_here = int(number), int(at), bool(here)
        if of_pass != self._newest:
            raise InputError(
                f"a second iterator over {self.name!r} has begun, so the first one cannot go on: ranks agree on one "
                "at a time. Distribute the dataset once more, and read that"
            )
        if is_here:
            self.reads(of_pass)
            self.had[of_pass] = place + 1
        elif not place and self.uneven == "pad":
            self._tell(lambda agreement: agreement.ended(of_pass, 0))
            raise InputError(
                f"rank {world.rank()} got no batch of {self.name!r}: none, or so few that others had them "
                "all; make batches smaller, use fewer ranks, or have each rank read its own: data.split_by_rank"
            )
        must_wait = not is_here or self.uneven == "drop" or place == 1
        if must_wait:
            self._tell(lambda agreement: agreement.waits(of_pass, place, is_here))
        elif self.somebody_ended or not place:
            self._tell(lambda _: None)  # the others are to know
        return np.bool_(must_wait)

    def reads(self, number: int) -> None:
        """A batch of a pass is taken; called now and then.

        All ranks have made as many steps, for each averages gradients with the others. So who takes a batch well after
        the step at which another began a newer pass, and has not begun it, will not: one of them has looked at the
        stream alone, and each now has batches that the other has too.

        Raises:
            InputError: another rank reads a newer pass.
        """
        of_pass, steps = int(number), progress.steps()
        began = self._began[of_pass]
        if of_pass not in self._told and steps >= began + SURE_AFTER_STEPS:
            self._told.add(of_pass)
            self._owner.tell_reading(self, of_pass, began)
        for rank, (other, since) in self.others_read.copy().items():
            if other > self._newest and steps >= since + SURE_AFTER_STEPS:
                raise InputError(
                    f"rank {rank} trains with pass {other} over {self.name!r}, rank {world.rank()} with {of_pass}, "
                    "so both may have the same samples. All ranks must begin to iterate over it equally often; what "
                    "one rank alone looks at (if hvd.rank() == 0: next(iter(dataset))), it takes from the dataset "
                    "before data.distribute"
                )

    def _tell(self, what: _Note) -> None:
        self._owner.inbox.put((self, what))


class _AgreementThread:
    """All agreements of this rank."""

    def __init__(self) -> None:
        # Destructors may put into it; None: this is the end.
        self.inbox: queue.SimpleQueue[tuple[Stream | int, _Note] | None] = queue.SimpleQueue()
        self.streams: list[Stream] = []
        self.gone: set[int] = set()
        """Ranks whose scripts have ended."""
        self._agreements: dict[Stream, Agreement] = {}
        self._early: list[tuple[int, _Note]] = []
        self._post = Post(self._take, self._rank_gone)
        self.thread = threading.Thread(target=self._run, name="ends of streams", daemon=True)
        self.thread.start()

    def open(self, name: str, uneven: str) -> Stream:
        """A stream that this rank takes part in."""
        stream = Stream(name, uneven, self)
        self._agreements[stream] = Agreement(name, uneven, world.size(), world.rank(), self.gone)
        self.inbox.put((stream, lambda _: self.streams.append(stream)))
        return stream

    def _rank_gone(self, rank: int) -> None:
        for each in range(world.size()) if rank == 0 else (rank,):  # what others say comes by rank 0
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

    def _deliver(self, whose: Stream | int, what: _Note) -> None:
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


def join(name: str, uneven: str) -> Stream:
    """This rank's part in agreeing on the ends of a stream. Every rank must call it, in the same order."""
    begin()
    return _thread[0].open(name, uneven)
