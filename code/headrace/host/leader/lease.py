"""Renew the lease of one other host: a thread calls the host at intervals, until the host has the job's outcome.

A host that has not answered for `Settings.lease_s` seconds is lost. This module decides how often the leader calls it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace.host.control.channel import Body, ControlClient, ControlError
from headrace.host.inbox import HostAnswered, HostInformed, HostSilent, Inbox
from headrace.host.state import STEPPING
from headrace.outcome import Outcome

RENEW_INTERVAL_S = 1.0
STEPPING_INTERVAL_S = 2.5
"""Seconds between calls during training. There is little news then, and each call takes CPU time from the trainer."""
FIGURES = ("cpu", "memory", "suspended", "received")
"""Measurements in a host's status, which change all the time. If only they change, the main loop is not woken."""
RENEWALS_PER_LEASE = 4
"""Minimum number of times that the leader calls a host in `lease_s` seconds, if the host answers without delay."""


class Lease:
    """Calls `renew` on one host at intervals, and puts each reply or failure into the inbox.

    Args:
        news: function that returns the content of a call, such as the job's phase.
    """

    def __init__(
        self, host: str, address: str, secret: str, lease_s: float, news: Callable[[], Body], inbox: Inbox
    ) -> None:
        self.host = host
        self._address, self._secret, self._lease_s = address, secret, lease_s
        self._news, self._inbox = news, inbox
        self._hurry = threading.Event()
        self._closed = threading.Event()
        self._outcome: Outcome | None = None
        self._dump = False
        self._told: Body | None = None
        self._thread = threading.Thread(target=self._run, name=f"lease {host}", daemon=True)
        self._thread.start()

    def deliver(self, outcome: Outcome) -> None:
        """Send the host the outcome now, and repeat that until the host answers."""
        self._outcome = outcome
        self._hurry.set()

    def request_dump(self) -> None:
        """Ask the host to print the stacks of its ranks."""
        self._dump = True
        self._hurry.set()

    def hurry(self) -> None:
        """Call the host now, because there is news."""
        self._hurry.set()

    def close(self) -> None:
        self._closed.set()
        self._hurry.set()

    def _run(self) -> None:
        failed = False
        with ControlClient(self._address, self.host, self._secret) as client:
            while not self._closed.is_set():
                outcome = self._outcome
                failed = not self._renew(client, outcome)
                if outcome and not failed:
                    self._inbox.put(HostInformed(self.host))
                    return
                if self._hurry.wait(self._interval_s(failed)):
                    self._hurry.clear()

    def _interval_s(self, failed: bool) -> float:
        calm = self._news()["phase"] == STEPPING and not failed
        usual_s = STEPPING_INTERVAL_S if calm else RENEW_INTERVAL_S
        return min(usual_s, self._lease_s / RENEWALS_PER_LEASE)

    def _renew(self, client: ControlClient, outcome: Outcome | None) -> bool:
        """Call the host once; return whether it has answered."""
        dump = self._dump
        body: Body = {**self._news(), "dump": dump}
        if outcome:
            body["outcome"] = outcome.as_json()
        try:
            status = client.call("renew", body)
        except ControlError as error:
            self._inbox.put(HostSilent(self.host, str(error)))
            return False
        if dump:
            self._dump = False
        told = {name: value for name, value in status.items() if name not in FIGURES}
        self._inbox.put(HostAnswered(self.host, status, news=told != self._told))
        self._told = told
        return True
