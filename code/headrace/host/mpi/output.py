"""What the trainer's output says: whose line it is, which rank failed first, who is waited for."""

from __future__ import annotations

import collections
import re
import threading
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace

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
from headrace.outcome import LOG_TAIL_LINES, RootCause

# How `mpirun --tag-output` marks a line: [job,rank]<stdout>:text
_TAG = re.compile(r"\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:")
# Open MPI 4.1's own words (orte/tools/orterun help texts) about a rank that a signal ended.
_SIGNALLED = re.compile(
    r"process rank (?P<rank>\d+) with PID (?P<pid>\d+) on node (?P<host>\S+) exited on signal (?P<signal>\d+)"
)
# … and about one that ended without MPI's knowing.
_LEFT = re.compile(r"mpirun has exited due to process rank (?P<rank>\d+) with PID")
# … with a code of its own, of which it tells in two lines.
_LEFT_RANK, _LEFT_CODE = re.compile(r"^\s*Process name: \[\[\d+,\d+\],(\d+)\]"), re.compile(r"^\s*Exit code: +(\d+)$")
# … and about what it has no room for, or too few descriptors; then it may never end.
_LACKS = re.compile(r"(?:PMIX ERROR|ORTE_ERROR_LOG): (?P<what>OUT-OF-RESOURCE|[^:]*system limit[^:]*) in file")
_NO_MPI = re.compile(r"Local abort before MPI_INIT")
_STALL_WORDS = [each.stall_words for each in FRAMEWORKS.values() if each.stall_words]
_SIGNALS = {"1": "SIGHUP", "6": "SIGABRT", "7": "SIGBUS", "9": "SIGKILL", "11": "SIGSEGV", "15": "SIGTERM"}
MOST_TOLD = 4
"""Ranks of which it is said where they wait."""
_EXITED = re.compile(r"raised SystemExit: \d+")
"""A script that has printed why it ends: click's usage errors."""
NO_ROOM = "is its disk or /dev/shm full, or are too many files open?"
WITHOUT_A_WORD = "ended without a word, as os._exit does: raise an error, or let the script run to its end"


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
        self._missing_ranks: dict[int, str] = {}
        """… and the first collective in which others wait for them."""
        self._waiting_ranks: dict[int, str] = {}
        """… and the line of the script's where each waits."""
        self._ended_ranks: set[int] = set()
        self._waits_for_ends = ""
        self._reads_data = False
        self._left_rank: int | None = None
        self._lacks = ""
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
            complains = any(words.complaint.search(text) for words in _STALL_WORDS)
            missing = next(filter(None, (words.missing_rank.match(text) for words in _STALL_WORDS)), None)
            if complains:
                self._missing_ranks = {}
            elif missing:
                self._missing_ranks[int(missing["rank"])] = missing["first"]
            self._lines += not (complains or missing)
            if event and event.name == WAITS_FOR_ENDS:
                told = {"rank": "?", "stream": "?", "ranks": "?", **event.fields}
                words = "rank {rank} waits for ranks {ranks} to tell whether {stream!r} goes on".format_map(told)
                why = urllib.parse.unquote(told.get("why", ""))
                self._waits_for_ends = f"{words}: {why}" if why else words
            if event and event.name == WAITS_FOR_RANKS:
                self._waiting_ranks[_number(event.fields.get("rank", ""))] = event.fields.get("at", "")
            self._reads_data |= event is not None and event.name == READS_DATA
            if event and event.name == RANK_ENDED:
                self._ended_ranks.add(_number(event.fields.get("rank", "")))
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
                who_died = f"rank{signalled['rank']}"
                self._fail(RootCause(host, who_died, f"was killed by {name}", int(signalled["pid"]), signal=name))
            if lacks := _LACKS.search(text):
                self._lacks = f"{lacks['what']}: {NO_ROOM}"
                if who == MPIRUN and lacks["what"] != "OUT-OF-RESOURCE":  # of which a rank tells more
                    self._fail(RootCause(self._leader, MPIRUN, f"cannot start the ranks: {self._lacks}"))
            elif _NO_MPI.search(text) and who != MPIRUN:
                why = f"could not start MPI: {self._lacks or 'the lines above tell'}"
                self._fail(RootCause(self._host_of(_number(who[4:])), who, why, exit_code=1))
            if left := _LEFT.search(text):
                self._fail(self._left(int(left["rank"]), WITHOUT_A_WORD))
            elif left := _LEFT_RANK.search(text):
                self._left_rank = int(left[1])
            elif (left := _LEFT_CODE.search(text)) and self._left_rank is not None:
                self._fail(self._left(self._left_rank, f"exited with {left[1]}: {WITHOUT_A_WORD}", int(left[1])))
        return who, text

    def root_cause(self, fallback: RootCause) -> RootCause:
        """The first failed rank with the last lines it said; mpirun's own end when no rank is known."""
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
        """Whether a rank has."""
        with self._lock:
            return self._first_failure is not None

    @property
    def world_size(self) -> int:
        """How many ranks have said anything."""
        return len(self._seen)

    @property
    def reads_data(self) -> bool:
        """Whether a rank has said that its script reads data through headrace."""
        return self._reads_data

    @property
    def waits_for_ends(self) -> str:
        """Which rank waits for which to say that a stream is over; empty when none has for long."""
        with self._lock:
            return self._waits_for_ends

    def progressed(self) -> None:
        """Steps were made: what ranks waited for has come."""
        with self._lock:
            self._missing_ranks, self._waiting_ranks, self._waits_for_ends = {}, {}, ""

    @property
    def lines(self) -> int:
        """How many lines the ranks have printed, a reducer's complaints left out."""
        with self._lock:
            return self._lines

    def missing_in_allreduce(self) -> list[tuple[str, str]]:
        """`(host, rank)` of the ranks that others wait for: the reducer's, or those that have not said they wait."""
        with self._lock:
            missing = list(self._missing_ranks)
            if self._waiting_ranks and not missing:
                everyone = range(len(self._hosts) * self._ranks_per_host)
                silent = [rank for rank in everyone if rank not in self._waiting_ranks]
                # Of several that are silent, some may wait where it cannot be seen: for a GPU.
                missing = silent if len(silent) == 1 else [] if silent else list(everyone)
            return [(self._host_of(rank), f"rank{rank}") for rank in missing]

    @property
    def wait_for_each_other(self) -> bool:
        """Whether the reducer has said of every rank that others wait for it: in different collectives, for good."""
        with self._lock:
            everyone = len(self._hosts) * self._ranks_per_host
            return everyone > 1 and len(self._missing_ranks) == everyone

    @property
    def where_they_wait(self) -> str:
        """`rank0 at train.py:57, rank1 at train.py:63`, as far as it is known; empty: nowhere."""
        with self._lock:
            told = [f"rank{rank} at {at}" for rank, at in sorted(self._waiting_ranks.items()) if at]
            told = told or [
                f"others wait for rank{rank} in {name}" for rank, name in self._missing_ranks.items() if name
            ]
            return ", ".join(told[:MOST_TOLD]) + ", …" * (len(told) > MOST_TOLD)

    @property
    def all_ended(self) -> bool:
        """Whether the script has ended on every rank, as far as ranks say so."""
        with self._lock:
            return self._ended_ranks == set(range(len(self._hosts) * self._ranks_per_host))

    def ended_and_awaited(self) -> RootCause | None:
        """A rank whose script has ended while all that go on wait in a collective, which can never be; None: none."""
        with self._lock:
            everyone = set(range(len(self._hosts) * self._ranks_per_host))
            wait = set(self._waiting_ranks)
            if not (wait and self._ended_ranks and wait | self._ended_ranks == everyone):
                return None
            ended, waiting = min(self._ended_ranks), min(wait - self._ended_ranks, default=None)
        return None if waiting is None else self._awaited(ended, waiting)

    def _awaited(self, ended: int, waiting: int) -> RootCause:
        why = f"its script has ended, and rank{waiting} waits for it in a collective: all must stop at the same step"
        return RootCause(self._host_of(ended), f"rank{ended}", why)

    def _fail(self, cause: RootCause) -> None:
        self._first_failure = self._first_failure or cause

    def _left(self, rank: int, why: str, exit_code: int | None = None) -> RootCause:
        return RootCause(self._host_of(rank), f"rank{rank}", why, exit_code=exit_code)

    def _raised(self, event: Event) -> RootCause:
        rank, pid, code = (_number(event.fields.get(name, "")) for name in ("rank", "pid", "exit_code"))
        if event.fields.get("broken") == "1" and self._ended_ranks - {rank}:  # its connection to one that has ended
            return self._awaited(min(self._ended_ranks - {rank}), rank)
        message = f"raised {urllib.parse.unquote(event.fields.get('error', 'an exception'))}"
        return RootCause(self._host_of(rank), f"rank{rank}", message, pid, exit_code=code)

    def _host_of(self, rank: int) -> str:
        index = rank // self._ranks_per_host
        return self._hosts[index] if index < len(self._hosts) else self._leader
