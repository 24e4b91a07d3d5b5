"""Utilization and memory of this host's GPUs, from NVIDIA's management library. Without it there are no figures.

The library's calls can hang with a broken driver, so a separate thread makes them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLE_S = 1.0
DEVICES = Path("/dev")


def gpus_here() -> int:
    """Return the number of NVIDIA GPUs of this host or container, counted by their device files in /dev."""
    return sum(each.name.removeprefix("nvidia").isdecimal() for each in DEVICES.glob("nvidia[0-9]*"))


class Gpus:
    """Measures mean utilization, and highest memory use, of all GPUs together since `mark`.

    Args:
        counts: returns whether to count a sample of the utilization. A host counts samples while its ranks make steps.
    """

    def __init__(self, counts: Callable[[], bool] = lambda: True) -> None:
        self._counts = counts
        self._lock = threading.Lock()
        self._count = 0
        self._samples = 0
        self._busy = 0.0
        self._memory = self._memory_total = 0
        threading.Thread(target=self._run, name="GPU figures", daemon=True).start()

    def mark(self) -> None:
        """Start counting from zero."""
        with self._lock:
            self._samples, self._busy, self._memory = 0, 0.0, 0

    def report(self) -> dict[str, Any] | None:
        """Return the figures since `mark`, or None without GPUs.

        `count` is the number of GPUs. A sample is the mean utilization of all GPUs, from 0 to 1. `samples` is the
        number of samples, `busy` is their sum, `utilization` their mean. `memory_bytes` is the highest memory use of
        all GPUs together, and `memory_total_bytes` is the size of the GPUs' memory.
        """
        with self._lock:
            if not self._count:
                return None
            return {
                "count": self._count,
                "utilization": round(self._busy / max(self._samples, 1), 4),
                "samples": self._samples,
                "busy": self._busy,
                "memory_bytes": self._memory,
                "memory_total_bytes": self._memory_total,
            }

    def _run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(each) for each in range(pynvml.nvmlDeviceGetCount())]
        except Exception:
            return  # no library, no driver or no GPU: then there are no figures
        while handles:
            time.sleep(SAMPLE_S)
            # A figure may be missing at times. Utilization is always missing if MIG splits a GPU.
            with contextlib.suppress(Exception):
                memory = [pynvml.nvmlDeviceGetMemoryInfo(each) for each in handles]
                with self._lock:
                    self._count = len(handles)
                    self._memory = max(self._memory, sum(int(each.used) for each in memory))
                    self._memory_total = sum(int(each.total) for each in memory)
            with contextlib.suppress(Exception):
                shares = [pynvml.nvmlDeviceGetUtilizationRates(each).gpu / 100 for each in handles]
                if not self._counts():
                    continue
                with self._lock:
                    self._samples += 1
                    self._busy += sum(shares) / len(shares)
