"""One stream's passes as tf.data's threads see them: who had how many batches, and what was decided.

What is agreed on is `agreement_thread`'s, which alone keeps it; these threads put notes into its inbox, without a lock.
"""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
import tensorflow as tf

from headrace.errors import InputError
from headrace.tensorflow.keras import evaluation, rank_meter
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.ranks.agreement import Agreement, always

SURE_AFTER_STEPS = 8
"""Training steps by which a rank has begun a pass that another one has begun: they begin it at the same step."""
Note = Callable[[Agreement], list[tuple[int, bool]] | None]
"""Something that has happened; may make decisions."""


class Owner(Protocol):
    """Who keeps what the ranks agree on."""

    inbox: queue.SimpleQueue[tuple[Stream | int, Note] | None]
    """Of notes of a stream, or of the one with this number."""

    def tell_reading(self, stream: Stream, number: int, began: int) -> None:
        """Tell the others which pass this rank trains with."""


class Stream:
    """One stream, as tf.data's threads see it."""

    def __init__(self, name: str, uneven: str, owner: Owner) -> None:
        self.name, self.uneven = name, uneven
        self.decisions = tf.queue.FIFOQueue(-1, [tf.int64, tf.bool], [[], []])
        """The number of a pass, and whether the batch that it waits for is for all ranks."""
        self.somebody_ended = False
        self.repeated = 0
        """Batches that this rank has taken again, of the newest pass, if that is an evaluation's."""
        self.had: dict[int, int] = {}
        """Batches so far, of the newest pass at least."""
        self.others_read: dict[int, tuple[int, int]] = {}
        """By rank, as `Agreement.others_read`."""
        self._owner = owner
        self._numbers = itertools.count(1)
        self._newest = 0
        self._evaluation: evaluation.Evaluation | None = None
        """That for which the newest pass was begun."""
        self._began: dict[int, int] = {}
        self._told: set[int] = set()

    def endless(self) -> Iterator[np.int64]:
        """The number of a pass that begins, and that has no end to agree on."""
        yield self._begins()

    def _begins(self) -> np.int64:
        number, steps = next(self._numbers), rank_meter.steps()  # two passes may begin at once, in two threads
        self._began[number], self._newest = steps, number
        return np.int64(number)

    def passes(self) -> Iterator[np.int64]:
        """The number of a pass that begins; it is over when TensorFlow drops this generator, with the iterator."""
        before, begun = self.had, self._begins()
        number = int(begun)
        self.had, self.repeated, self._evaluation = {number: 0}, 0, evaluation.which_reads(self)
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
                f"rank {collectives.rank()} got no batch of {self.name!r}: none, or so few that others had them "
                "all; make batches smaller, use fewer ranks, or have each rank read its own: data.split_by_rank"
            )
        elif self._evaluation:  # a training stream may be read ahead during one
            self.repeated = place - self.had.get(of_pass, place)
        must_wait = not is_here or self.uneven == "drop" or place == 1
        if must_wait:
            pads = self._evaluation.pads if self._evaluation else always
            self._tell(lambda agreement: agreement.waits(of_pass, place, is_here, pads))
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
        of_pass, steps = int(number), rank_meter.steps()
        began = self._began[of_pass]
        if of_pass not in self._told and steps >= began + SURE_AFTER_STEPS:
            self._told.add(of_pass)
            self._owner.tell_reading(self, of_pass, began)
        for rank, (other, since) in self.others_read.copy().items():
            if other > self._newest and steps >= since + SURE_AFTER_STEPS:
                raise InputError(
                    f"rank {rank} trains with pass {other} over {self.name!r}, rank {collectives.rank()} with "
                    f"{of_pass}, "
                    "so both may have the same samples. All ranks must begin to iterate over it equally often; what "
                    "one rank alone looks at (if hvd.rank() == 0: next(iter(dataset))), it takes from the dataset "
                    "before data.distribute"
                )

    def _tell(self, what: Note) -> None:
        self._owner.inbox.put((self, what))
