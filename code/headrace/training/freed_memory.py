"""Memory of batches is kept for the next batch, instead of going back to the system each time.

glibc maps a block of its own for what is large (above 32 MiB always, above 128 KiB until it has learned) and unmaps
it when it is freed. A batch is such a block, several times on its way, and each time costs page faults over its
whole length: batches of 38 MB come at a third of the rate.
"""

from __future__ import annotations

import ctypes

# Parameters of mallopt(3), from glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_KEPT_BYTES = 512 << 20


def keep_freed_memory() -> bool:
    """Call it before the first batch; whether it could be arranged (it takes glibc)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
