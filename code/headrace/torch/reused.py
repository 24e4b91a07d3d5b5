"""Memory that a script fills again and again, and gives out each time: a batch in it is another one by then.

With torch's loader in the same process that is well, for each batch is trained on before the next is made. Here the
next is made while the one before waits to be sent, by a thread, or by torch's queue between processes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

LOOKED_AT = 4
"""Batches of a process, from its first one on. They are held meanwhile, so that nothing else has their memory."""


class Reused:
    """What of a loader's batches has to be copied."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}
        self._again: set[int] = set()
        self._left = LOOKED_AT + 1

    def next_batch(self) -> None:
        """What is asked for next is another batch's."""
        self._left -= self._left > 0
        if not self._left:
            self._held.clear()

    def noted(self, address: int, holder: Any) -> bool:
        """Note that a batch has this memory, which `holder` keeps; whether it has to be copied."""
        if not self._left:
            return address in self._again
        if address in self._held:
            self._again.add(address)
        self._held[address] = holder
        return True

    def own_buffers(self, buffers: list[memoryview]) -> list[memoryview]:
        """A batch's, copied where they must be."""
        self.next_batch()
        addresses = [np.frombuffer(each, np.uint8).ctypes.data if each.nbytes else 0 for each in buffers]
        return [
            memoryview(bytes(each)) if address and self.noted(address, each) else each
            for address, each in zip(addresses, buffers, strict=True)
        ]

    def own(self, batch: Any) -> Any:
        """The same of a batch whose parts torch's `pytree` knows."""
        self.next_batch()
        return pytree.tree_map(self._own, batch)

    def _own(self, part: Any) -> Any:
        if type(part) is torch.Tensor and part.layout == torch.strided and not part.is_nested and part.numel():
            again = self.noted(part.data_ptr(), part)
            return part.detach().clone().requires_grad_(part.requires_grad) if again else part
        if type(part) is np.ndarray and part.size and part.dtype != object:
            return part.copy() if self.noted(part.ctypes.data, part) else part
        return part
