"""Runs a training script in a feed server up to where it would take its first batch: by then its loaders are made.

The script's own path and arguments make the dataset, here as on the ranks: nothing that a rank sends is code. To the
script this is a job of one rank, on the CPU.
"""

from __future__ import annotations

import datetime
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from headrace.errors import InputError, SetupError
from headrace.execs import refuse_exec
from headrace.rank_failure import in_a_line
from headrace.torch import distributed as world
from headrace.torch import registry

MOST_STEPS = 20
"""Of optimizers, before the first batch: some scripts warm up."""
TRAINS_HERE = (
    "the script trains before it takes a batch of a headrace.torch.DataLoader: does something make a loader of its own "
    "out of it (accelerator.prepare, for one)? Leave the loader out there, or " + registry.WITHOUT_DATA_HOSTS
)


def run_until_first_batch(
    script: str, arguments: Sequence[str], serve: Callable[[], None], refuse: Callable[[str], None]
) -> NoReturn:
    """Runs the script; `serve` is called where it would take its first batch.

    Args:
        serve: does not return.
        refuse: gets what is wrong with the script, while it runs; does not return.

    Raises:
        InputError, SetupError: the script ended before.
    """
    os.environ |= world.ALONE
    dist.init_process_group = alone(dist.init_process_group)
    keep_handler(signal.SIGTERM)
    refuse_exec()
    steps = 0

    def count_step(optimizer: Any, *_: Any) -> None:
        nonlocal steps
        steps += any(each.grad is not None for group in optimizer.param_groups for each in group["params"])
        if steps > MOST_STEPS:
            refuse(TRAINS_HERE)

    hook = register_optimizer_step_pre_hook(count_step)

    def stop_here() -> None:
        hook.remove()  # a dataset may optimize something too
        serve()

    registry.Serving.on, registry.Serving.serve = True, stop_here
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            kind = InputError if leaving.code == InputError.exit_code else SetupError  # argparse's code, for one
            raise kind(f"{script} ended here, before its first batch: {in_a_line(leaving)}") from leaving
    raise SetupError(
        f"{script} took no batch of a headrace.torch.DataLoader, so there is nothing to make here; "
        f"use one, or {registry.WITHOUT_DATA_HOSTS}"
    )


def keep_handler(number: int) -> None:
    """Of this signal: the script's own would save its model, for one, when the job ends."""
    own, install = signal.getsignal(number), signal.signal

    def signal_but_that(signum: int, handler: Any) -> Any:
        return own if signum == number else install(signum, handler)

    signal.signal = signal_but_that  # type: ignore[assignment]


def alone(init_process_group: Callable[..., None]) -> Callable[..., None]:
    """`init_process_group` for a process that is the only rank, whatever it is called with."""

    def init(*_: Any, timeout: datetime.timedelta | None = None, **__: Any) -> None:
        if not dist.is_initialized():
            init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    return init
