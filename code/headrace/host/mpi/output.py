"""Read the trainer's output. Find out who wrote a line, which rank failed first, and for which ranks others wait."""

from __future__ import annotations

import collections
import re
import threading
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.cluster.topology import Host
from headrace.events import (
    PREFLIGHT_FAILED,
    RANK_ENDED,
    RANK_FAILED,
    READS_DATA,
    WAITS_FOR_ENDS,
    WAITS_FOR_RANKS,
    Event,
    parse_event,
)
from headrace.frameworks import FRAMEWORKS
from headrace.host.mpi.mpirun import MPIRUN
from headrace.outcome import LOG_TAIL_LINES, RootCause, describe_return_code

# The mark of `mpirun --tag-output` in a line: [job,rank]<stdout>:text
_TAG = re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:")
# Open MPI 4.1's own words (orte/tools/orterun help texts) about a rank that a signal ended.
_SIGNALLED = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
)
# Open MPI's words about a rank that ended without MPI's knowledge.
_LEFT = re.compile(r"mpirun has exited due to process rank (?P<rank>\d+) with PID")
# Open MPI's two lines about a rank that ended with an exit code of its own.
_LEFT_RANK, _LEFT_CODE = re.compile(r"^\s*Process name: \[\[\d+,\d+\],(\d+)\]"), re.compile(r"^\s*Exit code: +(\d+)$")
# Open MPI's words about a lack of space or descriptors. After these words, Open MPI may never end.
_LACKS = re.compile(r"(?:PMIX ERROR|ORTE_ERROR_LOG): (?P<what>OUT-OF-RESOURCE|[^:]*system limit[^:]*) in file")
_NO_MPI = re.compile(r"Local abort before MPI_INIT")
_STALL_WORDS = [each.stall_words for each in FRAMEWORKS.values() if each.stall_words]
MOST_TOLD = 4
"""A message about waiting ranks lists at most this many ranks."""
_EXITED = re.compile(r"raised SystemExit: \d+")
"""Matches a failure by `sys.exit(NUMBER)`. The script, or its library (such as click), has then printed the reason."""
NO_ROOM = "is its disk or /dev/shm full, or are too many files open?"
WITHOUT_A_WORD = "ended without an exception, for example by os._exit: raise one, or let the script run to its end"


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


class RankLog:
    """Reader of the trainer's output that tells who wrote each line and which rank failed first. Thread-safe.

    Args:
        trainer: author of lines without mpirun's tag: `mpirun`, or `rankN` if SageMaker's toolkit starts the ranks.
    """

    def __init__(self, leader: str, hosts: Sequence[Host], ranks_per_host: int, trainer: str = MPIRUN) -> None:
        self._leader = leader
        self._trainer = trainer
        self._hosts = [host.name for host in hosts]
        self._ranks_per_host = ranks_per_host
        self._tails: dict[str, collections.deque[str]] = {}
        self._first_failure: RootCause | None = None
        self._lost_peer = False
        """True if the first failure is only a lost connection to another rank. The cause may be reported later."""
        self._missing_ranks: dict[int, str] = {}
        """Ranks missing in the last stall warning. The value is the first collective that waits for the rank."""
        self._waiting_ranks: dict[int, str] = {}
        """Ranks that wait in a collective, each with the line of the script where it waits."""
        self._ended_ranks: set[int] = set()
        self.world_size = len(hosts) * ranks_per_host
        self.waits_for_ends = ""
        """Message about a rank that has read a dataset to its end and waits long for other ranks; empty if none."""
        self.reads_data = False
        """True if a rank has said that its script reads data through headrace."""
        self.lines = 0
        """Number of lines that the ranks have printed, without the framework's warnings about missing ranks."""
        self._left_rank: int | None = None
        self._lacks = ""
        self._lock = threading.Lock()

    def label(self, line: str) -> tuple[str, str]:
        """Take one line; return `(rankN, text)` if mpirun tagged it as a rank's, else `(trainer, text)`."""
        match = _TAG.match(line)
        who = f"rank{match['rank']}" if match else self._trainer
        # If a rank wrote a line in two pieces, mpirun has also tagged the second piece, within the line. What precedes
        # a carriage return was overwritten, for example by a progress bar.
        text = (_TAG.sub("", line) if match else line).rpartition("\r")[2]
        event = parse_event(text)
        with self._lock:
            complains = any(words.complaint.search(text) for words in _STALL_WORDS)
            missing = next(filter(None, (words.missing_rank.match(text) for words in _STALL_WORDS)), None)
            if complains:
                self._missing_ranks = {}
            elif missing:
                self._missing_ranks[int(missing["rank"])] = missing["first"]
            self.lines += not (complains or missing or (event and event.name == WAITS_FOR_RANKS))
            if event and event.name == WAITS_FOR_ENDS:
                told = {"rank": "?", "stream": "?", "ranks": "?", **event.fields}
                words = "rank {rank} waits until ranks {ranks} say if dataset {stream!r} has more data".format_map(told)
                why = urllib.parse.unquote(told.get("why", ""))
                advice = "do all filtering, batching and random mixing of elements before data.distribute"
                self.waits_for_ends = f"{words}: {why}" if why else f"{words}; {advice}"
            if event and event.name == WAITS_FOR_RANKS:
                self._waiting_ranks.pop(number := _number(event.fields.get("rank", "")), None)
                if "over" not in event.fields:
                    self._waiting_ranks[number] = event.fields.get("at", "")
            self.reads_data |= event is not None and event.name == READS_DATA
            if event and event.name == RANK_ENDED:
                self._ended_ranks.add(_number(event.fields.get("rank", "")))
                self._waiting_ranks = {}  # old reports may be outdated; ranks that still wait repeat theirs
            if event and event.name == RANK_FAILED:
                self._fail(self._raised(event), lost_peer=event.fields.get("broken") == "1")
            elif event and event.name == PREFLIGHT_FAILED:
                rank, said = _number(event.fields.get("rank", "")), urllib.parse.unquote(event.fields.get("error", ""))
                cause = self._of_rank(rank, f"preflight: {said}", exit_code=1)
                self._fail(replace(cause, host=event.fields.get("host") or cause.host))
            else:
                self._tails.setdefault(who, collections.deque(maxlen=LOG_TAIL_LINES)).append(text)
            if event:
                return who, text
            if signalled := _SIGNALLED.search(text):
                _, name, how = describe_return_code(-int(signalled["signal"]))
                self._fail(self._of_rank(int(signalled["rank"]), how, int(signalled["pid"]), signal=name))
            if lacks := _LACKS.search(text):
                self._lacks = f"{lacks['what']}: {NO_ROOM}"
                if who == MPIRUN and lacks["what"] != "OUT-OF-RESOURCE":  # for this one, a rank reports more
                    self._fail(RootCause(self._leader, MPIRUN, f"cannot start the ranks: {self._lacks}"))
            elif _NO_MPI.search(text) and who != MPIRUN:
                why = f"could not start MPI: {self._lacks or 'see the lines above'}"
                self._fail(self._of_rank(_number(who[4:]), why, exit_code=1))
            if left := _LEFT.search(text):
                self._fail(self._of_rank(int(left["rank"]), WITHOUT_A_WORD))
            elif left := _LEFT_RANK.search(text):
                self._left_rank = int(left[1])
            elif (left := _LEFT_CODE.search(text)) and self._left_rank is not None:
                why = f"exited with {left[1]}: {WITHOUT_A_WORD}"
                self._fail(self._of_rank(self._left_rank, why, exit_code=int(left[1])))
        return who, text

    def root_cause(self, fallback: RootCause) -> RootCause:
        """Return the failure of the rank that failed first, with its last lines; `fallback` if no rank has failed."""
        with self._lock:
            failure = self._first_failure
            if failure is None:
                return fallback
            tail = tuple(self._tails.get(failure.process, ()))
            said = next((line.strip() for line in reversed(tail) if line.strip()), "")
            why = f", and its last line is: {said[:500]}" if said and _EXITED.fullmatch(failure.message) else ""
            return replace(failure, message=failure.message + why, log_tail=tail)

    @property
    def has_failed(self) -> bool:
        return self._first_failure is not None

    def progressed(self) -> None:
        """Forget which ranks wait: steps were made, so the waits are over."""
        with self._lock:
            self._missing_ranks, self._waiting_ranks, self.waits_for_ends = {}, {}, ""

    def missing_in_allreduce(self) -> list[tuple[str, str]]:
        """Return `(host, rank)` of ranks that others wait for. Framework warnings or ranks' reports tell which."""
        with self._lock:
            missing = list(self._missing_ranks)
            if self._waiting_ranks and not missing:
                everyone = range(self.world_size)
                silent = [rank for rank in everyone if rank not in self._waiting_ranks]
                # If several ranks are silent, some of them may wait without reporting it, for a GPU for example.
                missing = silent if len(silent) == 1 else [] if silent else list(everyone)
            return [(self._host_of(rank), f"rank{rank}") for rank in missing]

    @property
    def wait_for_each_other(self) -> bool:
        """True if stall warnings name every rank as missing from a collective. Then all ranks wait for ever."""
        with self._lock:
            return len(self._missing_ranks) == self.world_size > 1

    @property
    def where_they_wait(self) -> str:
        """Places where ranks wait, such as `rank0 at train.py:57, rank1 at train.py:63`; empty if none is known."""
        with self._lock:
            told = [f"rank{rank} at {at}" for rank, at in sorted(self._waiting_ranks.items()) if at]
            told = told or [
                f"others wait for rank{rank} in {name}" for rank, name in self._missing_ranks.items() if name
            ]
            return ", ".join(told[:MOST_TOLD]) + ", …" * (len(told) > MOST_TOLD)

    @property
    def all_ended(self) -> bool:
        """True if every rank has reported that its script has ended."""
        with self._lock:
            return self._ended_ranks == set(range(self.world_size))

    def ended_and_awaited(self) -> RootCause | None:
        """Return the root cause if a rank's script has ended and all others wait in a collective; else None."""
        with self._lock:
            wait = set(self._waiting_ranks)
            if not (wait and self._ended_ranks and wait | self._ended_ranks == set(range(self.world_size))):
                return None
            ended, waiting = min(self._ended_ranks), min(wait - self._ended_ranks, default=None)
        return None if waiting is None else self._awaited(ended, waiting)

    def _awaited(self, ended: int, waiting: int) -> RootCause:
        why = f"its script has ended, and rank{waiting} waits for it in a collective: all must stop at the same step"
        return self._of_rank(ended, why)

    def _fail(self, cause: RootCause, lost_peer: bool = False) -> None:
        """Record the first failure. If only a lost connection is recorded, a killed rank's failure replaces it."""
        if self._first_failure is None or (self._lost_peer and cause.signal):
            self._first_failure, self._lost_peer = cause, lost_peer

    def _of_rank(self, rank: int, message: str, pid: int | None = None, **how: Any) -> RootCause:
        return RootCause(self._host_of(rank), f"rank{rank}", message, pid, **how)

    def _raised(self, event: Event) -> RootCause:
        rank, pid, code = (_number(event.fields.get(name, "")) for name in ("rank", "pid", "exit_code"))
        if event.fields.get("broken") == "1" and self._ended_ranks - {rank}:  # an ended rank broke the connection
            return self._awaited(min(self._ended_ranks - {rank}), rank)
        message = f"raised {urllib.parse.unquote(event.fields.get('error', 'an exception'))}"
        return self._of_rank(rank, message, pid, exit_code=code)

    def _host_of(self, rank: int) -> str:
        index = rank // self._ranks_per_host
        return self._hosts[index] if index < len(self._hosts) else self._leader
