"""Whether ranks have the same model at the same moment, from a little that each says. No TensorFlow."""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, field

ADVICE = (
    "though their gradients are averaged. Give each model hvd.callbacks.BroadcastGlobalVariablesCallback(0) (in a "
    "loop: hvd.broadcast_variables), and put what changes the learning rate after "
    "hvd.callbacks.MetricAverageCallback()"
)
EQUALLY_MANY = (
    "but each step waits for all ranks, so that in the end one waits for steps that never come. Give all ranks equally "
    "many batches an epoch: data.distribute does, or steps_per_epoch"
)
TOLERANCE = 1e-4
"""Of a projection, as a share of the norm: more than rounding makes, and less than the difference of random weights."""
KEPT = 16
"""Moments by which ranks may be apart and are still compared."""
_PAIR = struct.Struct("=ff")
_WORD = struct.Struct("=q")


@dataclass(frozen=True)
class Glance:
    """What a rank says of its model: equal on ranks whose models are."""

    projection: float
    """The weights, each times 1 or -1, added up."""
    norm: float
    learning_rate: float
    parts: float
    """How many variables and optimizers it is of: those that are gone may not be gone on all ranks yet."""
    steps: int = 0
    """How often it has averaged gradients by the end of an epoch; 0 elsewhere. Not packed."""

    def packed(self) -> tuple[int, int]:
        """As two numbers of a message."""
        pairs = ((self.projection, self.norm), (self.learning_rate, self.parts))
        first, second = (_WORD.unpack(_PAIR.pack(*pair))[0] for pair in pairs)
        return first, second

    @classmethod
    def unpacked(cls, first: int, second: int) -> Glance:
        """From a message's two numbers."""
        (projection, norm), (rate, parts) = (_PAIR.unpack(_WORD.pack(each)) for each in (first, second))
        return cls(projection, norm, rate, parts)


@dataclass
class Comparison:
    """What ranks have said, on rank 0: itself in the thread that trains, and the others in the one of the messages."""

    over: bool = False
    """A difference has been found; another is not looked for."""
    _said: dict[int, dict[int, Glance]] = field(default_factory=dict)
    """By moment and rank, in the order in which moments were first heard of."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def hears(self, rank: int, moment: int, glance: Glance) -> str:
        """Rank 0's own, or another's; how a rank's model differs from rank 0's, the first time that one does."""
        with self._lock:
            said = self._said.setdefault(moment, {})
            said.setdefault(rank, glance)
            for old in list(self._said)[:-KEPT]:
                del self._said[old]
            if self.over or 0 not in said:
                return ""
            others = said if rank == 0 else {rank: said[rank]}
            found = next(filter(None, (_difference(said[0], each, other) for other, each in others.items())), "")
            self.over = bool(found)
            return found


def _difference(ours: Glance, theirs: Glance, rank: int) -> str:
    if ours.steps != theirs.steps:
        return f"rank {rank} had made {theirs.steps} steps, and rank 0 {ours.steps}, {EQUALLY_MANY}"
    if ours.parts != theirs.parts:
        return ""
    if abs(ours.projection - theirs.projection) > TOLERANCE * ours.norm:
        return f"rank {rank}'s weights are not rank 0's, {ADVICE}"
    if abs(ours.learning_rate - theirs.learning_rate) > TOLERANCE * abs(ours.learning_rate):
        rates = f"{theirs.learning_rate:g}, and rank 0's is {ours.learning_rate:g}"
        return f"rank {rank}'s learning rate is {rates}, {ADVICE}"
    return ""
