"""Tells the launcher which ranks wait for others in a collective, so that the one that does not is known.

gloo and NCCL say nothing while they wait. A thread looks where the main thread is: not moving, in a backward pass
(where gradients are averaged) or in torch.distributed itself.
"""

from __future__ import annotations

import os
import threading
import time
from types import FrameType

import headrace
from headrace.events import WAITS_FOR_RANKS, say
from headrace.progress import innermost_frame
from headrace.settings import STALL_TIMEOUT_VARIABLE
from headrace.torch.dataset_code import is_a_librarys_file

LOOK_EVERY_S = 0.5
SHARE = 5
"""Of `stall_timeout_s`: told after a fifth, as Horovod does."""
_FILES = (os.path.join("torch", "distributed", ""), os.path.join("torch", "nn", "parallel", "distributed.py"))
_OURS = os.path.join(os.path.dirname(headrace.__file__), "")


_watched = False


def watch(rank: int, world: int) -> None:
    """Look at the calling thread from now on, if nobody does; does nothing without a launcher."""
    global _watched
    limit_s = float(os.environ.get(STALL_TIMEOUT_VARIABLE) or 0) / SHARE
    if limit_s and world > 1 and not _watched:
        _watched = True
        arguments = (threading.get_ident(), rank, limit_s)
        threading.Thread(target=_look, args=arguments, name="collectives", daemon=True).start()


def _look(thread: int, rank: int, limit_s: float) -> None:
    place, since, told = None, time.monotonic(), False
    while True:
        time.sleep(LOOK_EVERY_S)
        frame = innermost_frame(thread)
        if frame is None:
            return
        now_at = (frame.f_code, frame.f_lasti, frame.f_back and frame.f_back.f_lasti)
        if now_at != place:
            place, since, told = now_at, time.monotonic(), False
        elif not told and is_collective(frame) and time.monotonic() - since > limit_s:
            told = True
            say(WAITS_FOR_RANKS, rank=rank, at=place_in_script(frame))


def place_in_script(frame: FrameType | None) -> str:
    """`train.py:57`: the script's own line in which a thread is; empty: it is in none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_a_librarys_file(file) and not file.startswith((_OURS, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def is_collective(frame: FrameType) -> bool:
    """Whether a thread whose innermost frame this is can be waiting for other ranks."""
    code = frame.f_code
    return code.co_name == "_engine_run_backward" or any(each in code.co_filename for each in _FILES)
