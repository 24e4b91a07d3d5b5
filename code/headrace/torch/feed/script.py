"""Register the training script's loaders. On a feed server, run the script up to its first batch.

Ranks and feed servers run the same script and arguments, so ranks need not send code. Both know a loader by its key:
the loader's `name=`, or its number in creation order. On a feed server the script runs on the CPU, as rank 0 of 1.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.optim.optimizer import register_optimizer_step_pre_hook

from headrace.cluster.addresses import free_ports
from headrace.errors import InputError, SetupError
from headrace.rank.context import TrainerContext
from headrace.rank.failure import in_a_line
from headrace.torch import distributed

WITHOUT_DATA_HOSTS = "train without data hosts (--no-is_hetero --tf_data_mode local)"
OTHER_PROCESS = (
    "the script makes loaders in processes that it starts itself (torch.multiprocessing.spawn, for example). headrace "
    "starts a process for each rank: call the training function directly, with headrace.torch.local_rank()"
)
_APART = 1_000_003  # odd, so that seeds differ in the lowest 32 bits, which are all that torch uses
"""The default seed of loader n is n × this value. Each epoch adds 1 to a seed, so loaders' seeds must be far apart."""
_OWN_NUMBERS = 1 << 20
"""First number for unnamed loaders that ranks do not share. A loader's number determines its default seed."""


@dataclass
class Place:
    """A loader's place in the script: its number or name. A loader made again under the same name keeps its place.

    Attributes:
        key: the loader's name or number. Ranks and feed servers know the loader by this key.
        seed: the default seed of the loader's order and random draws.
        late: whether the loader was made after the first batch, so that feed servers may not have it yet.
        next_epoch: the epoch with which the next loader at this place begins.
        iterations: number of iterations that the loaders at this place have begun.
    """

    key: str
    seed: int
    late: bool
    next_epoch: int = 0
    iterations: int = 0


class _Process:
    """State of the script in this process."""

    is_server = False
    server: Any = None
    """A `feed.server.FeedServer`; None on a rank, and in a feed server's workers."""
    processors = 0
    """Number of worker processes that a loader uses if its `num_workers` is 0: 0 on a rank, more on a feed server."""
    begun = False
    """Whether the script has requested a batch."""


process = _Process()
_counts = {True: 0, False: 0}
"""How many unnamed loaders the script has made. Key True: loaders that ranks share. Key False: the other loaders."""
_places: dict[str, Place] = {}
_loaders: dict[str, Any] = {}
"""All loaders of the script, by key; filled only on a feed server."""
serving = threading.Lock()
"""Lock with which `batch_asked_for` lets only one thread of the script serve ranks at a time."""


def is_feed_server() -> bool:
    """Return whether this process is a feed server, which runs the script on a data host only to make batches.

    A script uses this to skip work that only ranks should do before the first batch, such as starting a tracker.
    """
    return process.is_server


def feed_servers(environ: Mapping[str, str]) -> Sequence[str]:
    """Return HOST:PORT of each feed server that this process reads from; empty on a feed server itself.

    Raises `InputError` if the script of a feed server has started this process.
    """
    if is_feed_server():
        return ()
    if environ.get("HEADRACE_SERVER_NAME"):
        raise InputError(OTHER_PROCESS)
    return [each for each in TrainerContext.from_environ(environ).feeds.split(",") if each]


def register(loader: Any, shared: bool, name: str) -> Place:
    """Return the place of a loader that the script has just made.

    Raises `InputError` if two loaders have the same name before the script's first request for a batch. After this
    request, a loader gets the place of the earlier loader with its name: some scripts make a new loader each epoch.

    Args:
        shared: whether ranks share the loader. Unshared loaders are numbered separately: one rank alone may make them.
        name: the loader's `name=`, or empty.
    """
    if process.begun and name in _places:
        return _places[name]
    if name:
        key, number = name, zlib.crc32(name.encode()) + 2 * _OWN_NUMBERS
    else:
        count = _counts[shared]
        _counts[shared] += 1
        key, number = (str(count), count) if shared else (f"own {count}", count + _OWN_NUMBERS)
    if key in _places:
        raise InputError(f"two loaders have the name {key!r}; give each a name of its own")
    place = _places[key] = Place(key, number * _APART, process.begun)
    if is_feed_server():
        _loaders[key] = loader
    return place


def batch_asked_for() -> None:
    """Record that the script requests a batch. A feed server pauses the script here, and serves the script's loaders.

    The pause ends when a rank asks for a loader that the script has not made yet. The script then continues, with
    batches that this process makes itself. The script pauses again when it next calls `iter` on a loader.
    """
    process.begun = True
    if process.server is not None:
        with serving:  # other threads of the script wait here
            process.server.serve(dict(_loaders))


def training_begins() -> None:
    """Record that training begins. On a feed server this never returns: the server serves the script's loaders."""
    batch_asked_for()
    if process.server is not None:
        process.server.serve_for_good()


def _step_made(*_: Any) -> None:
    """Keep a feed server's script from training on a loader's batches. torch calls this before each optimizer step."""
    if not process.begun:
        print_once(
            "the script trains before it takes a batch of a headrace.torch.DataLoader. If it never takes one, data "
            f"hosts have nothing to do: iterate over a headrace.torch.DataLoader, or {WITHOUT_DATA_HOSTS}"
        )
    elif process.server is not None:  # not in a worker
        process.server.serve_for_good()


@functools.cache
def print_once(text: str) -> None:
    """Print a text, but each text only once in a process."""
    print(text, flush=True)


def run_until_first_batch(script: str, arguments: Sequence[str], server: Any, processors: int) -> NoReturn:
    """Run the script up to its first batch, where the server begins to serve.

    Args:
        server: a `feed.server.FeedServer`.
        processors: number of worker processes on this feed server for a loader with `num_workers=0`.

    Raises:
        InputError, SetupError: the script ended before its first batch.
    """
    os.environ |= distributed.ALONE | {"MASTER_PORT": str(free_ports(1)[0])}  # a host may have several servers
    register_optimizer_step_pre_hook(_step_made)
    process.is_server, process.server, process.processors = True, server, processors
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            kind = InputError if leaving.code == InputError.exit_code else SetupError  # argparse exits too
            raise kind(f"{script} exited in a feed server, before its first batch: {in_a_line(leaving)}") from leaving
    raise SetupError(
        f"{script} took no batch of a headrace.torch.DataLoader, so data hosts have nothing to do. "
        f"Iterate over a headrace.torch.DataLoader, or {WITHOUT_DATA_HOSTS}"
    )
