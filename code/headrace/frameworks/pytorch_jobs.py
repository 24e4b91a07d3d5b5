"""PyTorch's `Framework` object: all that the other packages know of PyTorch."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence

from headrace.cluster.addresses import free_ports
from headrace.frameworks.framework import Framework, RankFacts, Said

STALL_TIMEOUT_VARIABLE = "HEADRACE_STALL_TIMEOUT_S"
"""Variable with the stall timeout in whole seconds, for workers that await a reader and ranks that await a batch."""
FEEDS_VARIABLE = "HEADRACE_FEEDS"
"""Variable with the addresses of a PyTorch job's feed servers; see `TrainerContext`."""
MASTER_VARIABLE = "HEADRACE_MASTER"
"""Variable with the leader's address, which torch.distributed needs to connect the ranks."""
_OF_OTHERS = ("DistBackendError", "DistNetworkError")
_BROKEN = re.compile("gloo|NCCL|ncclRemoteError|Connection (closed|reset) by peer", re.IGNORECASE)
_OF_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
PORT_IN_USE = (
    "the script may itself have opened this port: each feed server on the host also runs the script, up to its first "
    "batch; open the port after the first batch, or only where headrace.torch.is_feed_server() is False"
)
GLOO_S = 5.0
"""Maximum seconds that an ending rank waits for gloo's threads to sleep. If all sleep already, it waits about 40 ms."""


def _rank_environ(facts: RankFacts) -> dict[str, str]:
    """Return the variables by which ranks find each other and know how long to wait."""
    return {
        MASTER_VARIABLE: facts.leader_address,
        STALL_TIMEOUT_VARIABLE: str(math.ceil(facts.stall_timeout_s)),
        # By default, PyTorch warns at each connection to an address without a name.
        "TORCH_CPP_LOG_LEVEL": facts.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def _what_is_said(lines: Sequence[str]) -> Said | None:
    if len(lines) > 2 and lines[0].endswith("following error:"):  # from torch.multiprocessing, with a traceback below
        return Said(lines[-1:])
    if "Last error:" in lines[:-1]:  # from NCCL, below general advice
        return Said([lines[lines.index("Last error:") + 1]])
    return None


def _advice(error: BaseException, _: str) -> str:
    return PORT_IN_USE if getattr(error, "errno", None) == errno.EADDRINUSE and os.environ.get(FEEDS_VARIABLE) else ""


def _connects(environ: Mapping[str, str]) -> bool:
    """Return whether this process is a rank of a PyTorch job: the variables to connect torch.distributed are set."""
    return bool(environ.get(MASTER_VARIABLE)) and all(name in environ for name in _OF_MPI.values())


def _lost_peer(error: BaseException, text: str) -> bool:
    """Return whether an error only means that another rank has ended: gloo or NCCL report a broken connection."""
    broken = isinstance(error, RuntimeError) and _BROKEN.search(text)
    return _connects(os.environ) and (type(error).__name__ in _OF_OTHERS or bool(broken))


def _before_script(environ: MutableMapping[str, str]) -> None:
    """Set the variables that `init_process_group` reads, as torchrun does. Rank 0 chooses the port for all ranks."""
    if not _connects(environ):
        return
    from mpi4py import MPI

    for name, source in _OF_MPI.items():
        environ[name] = environ[source]
    port = free_ports(1)[0] if MPI.COMM_WORLD.rank == 0 else 0
    environ["MASTER_ADDR"] = environ[MASTER_VARIABLE]
    environ["MASTER_PORT"] = str(MPI.COMM_WORLD.bcast(port))
    share = len(os.sched_getaffinity(0)) // int(environ["LOCAL_WORLD_SIZE"])
    # By default, each rank starts a thread per processor. torchrun sets 1 thread; headrace divides the processors.
    environ.setdefault("OMP_NUM_THREADS", str(max(share, 1)))


def _leave() -> None:
    from headrace.linux.processes import wait_for_threads  # needs psutil, which --help must not need

    # gloo's threads release the last collective's tensors late. A release after Python's end aborts the process:
    # pytorch/pytorch#190489.
    wait_for_threads("pt_gloo", GLOO_S)


PYTORCH = Framework(
    name="pytorch",
    title="PyTorch",
    training_script="train_torch.py",
    image_version="2.10.0",  # the newest for which AWS has an image
    modules=("torch",),
    how_to_install="in a checkout, `make setup-torch` and use .venv-torch/bin/python; "
    "else `pip install headrace[torch]`",
    data_service="torch_feed",
    without_sharing="shard_by_rank=False",
    measured_by="headrace.torch.Training",
    rank_environ=_rank_environ,
    what_is_said=_what_is_said,
    lost_peer=_lost_peer,
    has_sockets_in_tmpdir=True,
    shows_batches=True,
    advice=_advice,
    before_script=_before_script,
    leave=_leave,
)
