"""The leader's lease with one other host: renewed every few seconds, until the outcome is delivered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.host.control import Body, ControlClient, ControlError
from headrace.host.state import STEPPING
from headrace.outcome import Outcome

RENEW_INTERVAL_S = 1.0
STEPPING_INTERVAL_S = 2.5
"""Once steps are made there is little news, and with many hosts the calls add up on a core that the trainer wants."""
RENEWALS_PER_LEASE = 4
"""Of calls that are answered at once; after one that is not, they come faster."""


class Lease:
    """Keeps calling `renew` on one host from a thread of its own."""

    def __init__(
        self, host: str, address: str, secret: str, lease_s: float, news: Callable[[], Body], wake: threading.Event
    ) -> None:
        self.host = host
        self._address, self._secret, self._lease_s = address, secret, lease_s
        self._news = news  # what to tell the host: the job's phase, among others
        self._wake = wake  # the leader's loop
        self._hurry = threading.Event()
        self._lock = threading.Lock()
        self._status: Body | None = None
        self._last_renewed: float | None = None
        self._error = "not called yet"
        self._outcome: Outcome | None = None
        self._dump = False
        self.delivered = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease {host}", daemon=True)
        self._thread.start()

    @property
    def status(self) -> Body | None:
        """What the host last said of itself; None when it was never reached."""
        with self._lock:
            return self._status

    @property
    def error(self) -> str:
        """Why the last call failed; empty when it did not."""
        with self._lock:
            return self._error

    def lost(self, now: float) -> bool:
        """Whether the host was reached once and then not for `lease_s`."""
        with self._lock:
            return self._last_renewed is not None and now - self._last_renewed > self._lease_s

    def deliver(self, outcome: Outcome) -> None:
        """Tell the host the outcome, at once and until it has heard."""
        with self._lock:
            self._outcome = outcome
        self._hurry.set()

    def request_dump(self) -> None:
        """Have the host print the stacks of its ranks."""
        with self._lock:
            self._dump = True
        self._hurry.set()

    def hurry(self) -> None:
        """Call now: there is news."""
        self._hurry.set()

    def close(self) -> None:
        self._closed.set()
        self._hurry.set()

    def _run(self) -> None:
        with ControlClient(self._address, self.host, self._secret) as client:
            while not self._closed.is_set():
                self._renew(client)
                if self.delivered.is_set():
                    return
                if self._hurry.wait(self._interval_s()):
                    self._hurry.clear()

    def _interval_s(self) -> float:
        calm = self._news()["phase"] == STEPPING and not self.error
        usual_s = STEPPING_INTERVAL_S if calm else RENEW_INTERVAL_S
        return min(usual_s, self._lease_s / RENEWALS_PER_LEASE)

    def _renew(self, client: ControlClient) -> None:
        with self._lock:
            outcome, dump = self._outcome, self._dump
            self._dump = False
        body: Body = {**self._news(), "dump": dump}
        if outcome:
            body["outcome"] = outcome.as_json()
        try:
            status = client.call("renew", body)
        except ControlError as error:
            with self._lock:
                self._error = str(error)
            return
        with self._lock:
            news = self._status is None or any(
                self._status.get(name) != status.get(name)
                for name in ("ready", "offers", "registered_workers", "failure", "stop_signal")
            )
            self._status, self._error, self._last_renewed = status, "", time.monotonic()
        if outcome:
            self.delivered.set()
        if news or outcome:
            self._wake.set()
