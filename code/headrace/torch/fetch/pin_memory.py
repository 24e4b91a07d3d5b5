"""Copy each batch from pinned memory to the GPU while the previous step computes.

Batches from feed servers are received straight into pinned memory (`feed/codec.py`). torch's own loader pins the
batches of local workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping, ValuesView
from typing import Any

import torch

from headrace.torch.distributed import Moments

Pairs = Generator[tuple[Any, Any], None, None]


class DeviceCopies:
    """Puts batches on a device. A copy to a GPU runs on its own CUDA stream while the previous step computes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pins = device.type == "cuda"
        self._moments = Moments(device)
        self._last: tuple[Any, Any] | None = None

    def ahead(self, steps: Pairs) -> Pairs:
        """Yield the pairs (batch, other value) of `steps`, with each batch on the device."""
        if self.pins:
            return self._beside_the_step_before(steps)
        return ((to_device(batch, self.device), other) for batch, other in steps)

    def last_s(self) -> float | None:
        """Return how many seconds it took to copy the last yielded batch to the GPU; None: there was no copy."""
        return self._moments.between_s(*self._last) if self._last else None

    def _beside_the_step_before(self, steps: Pairs) -> Pairs:
        """Start to copy the next batch, then yield the current one. A step waits only for its own batch's copy."""
        stream = torch.cuda.Stream(self.device)

        def copied() -> Iterator[tuple[Any, Any, tuple[Any, Any], Any]]:
            for batch, other in steps:
                with torch.cuda.stream(stream):
                    begun, moved, done = self._moments.now(), to_device(batch, self.device), self._moments.now()
                yield moved, other, (begun, done), batch  # the pinned memory is kept until it is copied

        copies = copied()
        ahead = next(copies, None)
        while ahead is not None:
            moved, other, self._last, _ = ahead
            following = next(copies, None)
            current = torch.cuda.current_stream(self.device)
            current.wait_event(self._last[1])
            for each in arrays_of(moved):
                if isinstance(each, torch.Tensor):
                    each.record_stream(current)
            yield moved, other
            ahead = following


def to_device(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device. Does not wait for copies from pinned memory to end."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(each, device) for each in batch))
    if type(batch) in (list, tuple):
        return type(batch)(to_device(each, device) for each in batch)
    if callable(getattr(batch, "to", None)):  # BatchEncoding, PackedSequence and the like
        return batch.to(device)
    if isinstance(batch, dict):
        moved = batch.copy()
        moved.update({name: to_device(each, device) for name, each in batch.items()})
        return moved
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [each.name for each in dataclasses.fields(batch) if each.init]
        return dataclasses.replace(batch, **{name: to_device(getattr(batch, name), device) for name in fields})
    return batch


def arrays_of(batch: Any) -> Iterator[Any]:
    """Yield the tensors and arrays of a batch, at any depth."""
    if hasattr(batch, "shape"):
        yield batch
        return
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        batch = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    elif isinstance(batch, Mapping):
        batch = batch.values()
    for each in batch if isinstance(batch, (list, tuple, ValuesView)) else ():
        yield from arrays_of(each)
