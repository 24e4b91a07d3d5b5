"""Stages that all ranks go through together, so that a missing rank can be named.

Rank 0 coordinates. In each stage it waits until every rank has arrived, lets them all start, and waits until all are
done. If this takes too long, rank 0 asks the other ranks whether they are alive. A rank answers even while
it waits for another rank. A rank does not answer if it hangs, or if the network does not reach it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

COME, GO, DONE, ASKED, HERE = range(1, 6)
"""Tags of messages between rank 0 and the others."""
ANSWER_S = 3.0
"""Seconds for a rank to answer "are you alive?". A rank that waits looks for this question every few milliseconds."""
MARGIN = 2.0
"""Factor by which other ranks wait longer than rank 0. Rank 0 knows more, so it should be the first to report."""
_REST_S = (0.0002, 0.005)

Result = TypeVar("Result")


class PreflightError(Exception):
    """Raised if MPI does not work; names the rank at fault."""

    def __init__(self, rank: int, message: str, is_final: bool = False) -> None:
        super().__init__(rank, message, is_final)  # pickle sends these arguments to rank 0
        self.rank, self.message = rank, message
        self.is_final = is_final
        """Whether the failed rank raises the error itself. If not, the error goes to rank 0, which raises it."""

    def __str__(self) -> str:
        return self.message


class Meeting:
    """All ranks of a communicator, which go through stages together.

    Args:
        comm: a communicator of mpi4py that no other code uses meanwhile.
        timeout_s: limit on the time of a stage, in seconds.
    """

    def __init__(self, comm: Any, timeout_s: float, host: str) -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.hosts = [host if rank == self.rank else "" for rank in range(self.size)]
        """The host of each rank. Entries of other ranks are empty until all ranks have sent each other their hosts."""
        self._timeout_s = timeout_s
        self._deadline = 0.0
        self._sent: list[Any] = []
        self._at_work: set[int] = set()
        """The other members of the current stage, while rank 0 runs the stage's function; otherwise empty."""

    def stage(self, what: str, members: Collection[int], work: Callable[[], Result]) -> dict[int, Result]:
        """Call `work` on all members at the same time. Return their results by rank on rank 0, and {} on other ranks.

        Args:
            members: the ranks that work.
            work: the function that a member calls.

        Raises:
            PreflightError: a rank did not arrive or did not finish in time, or its work failed.
        """
        is_member = self.rank in members
        if self.rank:
            self._renew()
            self.wait([self.comm.isend(None, 0, COME)], what)
            self.wait([self.comm.irecv(source=0, tag=GO)], what)
            self._renew()
            made = self._attempt(work) if is_member else None
            self.wait([self.comm.isend(made, 0, DONE)], what)
            return {}
        self._renew()
        self._collect(COME, what)
        self.wait([self.comm.isend(None, rank, GO) for rank in range(1, self.size)], what)
        self._renew()
        self._at_work = {rank for rank in members if rank}
        results: dict[int, Any] = {0: self._attempt(work)} if is_member else {}
        self._at_work = set()
        results |= {rank: made for rank, made in self._collect(DONE, what).items() if rank in members}
        for made in results.values():
            if isinstance(made, PreflightError):
                raise made
        return results

    def wait(self, requests: list[Any], what: str, rest: bool = True) -> list[Any]:
        """Wait for MPI requests, and return their values. Raises `PreflightError` at the stage's deadline.

        Args:
            rest: whether to sleep between two checks. False: keep a processor busy, to measure times exactly.
        """
        from mpi4py import MPI

        pause_s = _REST_S[0]
        while True:
            done, values = MPI.Request.testall(requests)
            if done:
                return list(values or [])
            self._answer()
            if time.monotonic() > self._deadline:
                self._give_up(what, {rank for rank in self._at_work if not self.comm.iprobe(source=rank, tag=DONE)})
            if rest:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _REST_S[1])

    def name(self, rank: int) -> str:
        """Return a rank's name for messages."""
        return f"rank {rank}" + (f" on {self.hosts[rank]}" if self.hosts[rank] else "")

    def _attempt(self, work: Callable[[], Result]) -> Result | PreflightError:
        """Return the result of `work`, or its error. Rank 0 raises it later, since its output reaches the leader."""
        try:
            return work()
        except PreflightError as error:
            if error.is_final:
                raise
            return error

    def _renew(self) -> None:
        limit_s = self._timeout_s if self.rank == 0 else MARGIN * self._timeout_s + ANSWER_S
        self._deadline = time.monotonic() + limit_s

    def _collect(self, tag: int, what: str) -> dict[int, Any]:
        """On rank 0, receive a message with this tag from every other rank. Return the messages by rank."""
        said = self._receive(tag, self._deadline)
        if len(said) < self.size - 1:
            self._give_up(what, set(range(1, self.size)) - set(said))
        return said

    def _receive(self, tag: int, deadline: float) -> dict[int, Any]:
        """Receive a message with this tag from every other rank. Return the messages that came in time, by rank."""
        pause_s = _REST_S[0]
        said: dict[int, Any] = {}
        while True:
            for rank in range(1, self.size):
                if rank not in said and self.comm.iprobe(source=rank, tag=tag):
                    said[rank] = self.comm.recv(source=rank, tag=tag)
                    pause_s = _REST_S[0]
            if len(said) == self.size - 1 or time.monotonic() > deadline:
                return said
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _REST_S[1])

    def _answer(self) -> None:
        """Answer rank 0 if it asks whether this rank is alive."""
        if self.rank and self.comm.iprobe(source=0, tag=ASKED):
            self.comm.recv(source=0, tag=ASKED)
            self._sent.append(self.comm.isend(None, 0, HERE))
            self._renew()

    def _give_up(self, what: str, late: set[int]) -> None:
        """Raise an error that names the rank at fault.

        Args:
            late: the ranks that rank 0 waits for.
        """
        limit = f"{self._timeout_s:g} s (preflight_timeout_s)"
        if self.rank:
            message = f"{what} did not end within 2 × {limit}, and {self.name(0)} did not report why"
            raise PreflightError(0, message, is_final=True)
        if silent := self._silent():
            names = ", ".join(self.name(rank) for rank in silent)
            raise PreflightError(silent[0], f"{names} gave no sign of life in {what} within {limit}", is_final=True)
        waiting = sorted(late) or [0]
        names = ", ".join(self.name(rank) for rank in waiting)
        message = f"{what} did not end within {limit}; these ranks are alive, but not done: {names}"
        raise PreflightError(waiting[-1], message, is_final=True)

    def _silent(self) -> list[int]:
        """Ask all other ranks whether they are alive. Return those that do not answer."""
        others = range(1, self.size)
        self._sent += [self.comm.isend(None, rank, ASKED) for rank in others]
        here = self._receive(HERE, time.monotonic() + ANSWER_S)
        return [rank for rank in others if rank not in here]
