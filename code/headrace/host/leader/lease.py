"""The leader's lease with one other host: a thread that renews it until the outcome is delivered.

How long a host may be silent is `Settings.lease_s`; here is how often it is called.
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
"""Once steps are made there is little news, and with many hosts the calls add up on a core that the trainer wants."""
FIGURES = ("cpu", "memory", "suspended", "received")
"""What changes in each status, and wakes nobody."""
RENEWALS_PER_LEASE = 4
"""Of calls that are answered at once; after one that is not, they come faster."""


class Lease:
    """Keeps calling `renew` on one host, and puts into the inbox what comes of it.

    Args:
        news: what to tell the host with each call: the job's phase, among others.
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
        self._dump = threading.Event()
        self._told: Body | None = None
        self._thread = threading.Thread(target=self._run, name=f"lease {host}", daemon=True)
        self._thread.start()

    def deliver(self, outcome: Outcome) -> None:
        """Tell the host the outcome, at once and until it has heard."""
        self._outcome = outcome
        self._hurry.set()

    def request_dump(self) -> None:
        """Have the host print the stacks of its ranks."""
        self._dump.set()
        self._hurry.set()

    def hurry(self) -> None:
        """Call now: there is news."""
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
        """Whether the host has answered."""
        dump = self._dump.is_set()
        if dump:
            self._dump.clear()
        body: Body = {**self._news(), "dump": dump}
        if outcome:
            body["outcome"] = outcome.as_json()
        try:
            status = client.call("renew", body)
        except ControlError as error:
            if dump:
                self._dump.set()
            self._inbox.put(HostSilent(self.host, str(error)))
            return False
        told = {name: value for name, value in status.items() if name not in FIGURES}
        self._inbox.put(HostAnswered(self.host, status, news=told != self._told))
        self._told = told
        return True
