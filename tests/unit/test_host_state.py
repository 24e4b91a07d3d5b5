"""What a host knows of itself and tells: whatever its data service does, and however much a rank has printed."""

import json

import pytest
from headrace.events import Event
from headrace.host.control import MAX_MESSAGE_BYTES
from headrace.host.inbox import Inbox, LeaderSaid, ServerSaid
from headrace.host.resource_usage import ResourceUsage
from headrace.host.state import HostState
from headrace.outcome import Outcome, RootCause


class Broken:
    """A data service of which one method fails."""

    mode, kinds, waited_for = "service", (), "nothing"

    def __init__(self, method):
        self._method = method

    def _work(self, method):
        if method == self._method:
            raise OSError(f"of {method}")
        return {}

    def take_event(self, event):
        self._work("take_event")

    def hear(self, decision):
        self._work("hear")

    def report(self):
        return self._work("report")


@pytest.mark.parametrize("method", ["take_event", "hear", "report"])
def test_a_data_service_that_fails_is_this_hosts_failure_and_costs_no_outcome(method):
    state = HostState("algo-1", ResourceUsage(lambda: []), Broken(method), Inbox(), lambda: [])
    state.take((1.0, ServerSaid(Event("x", {}))))
    state.take((2.0, LeaderSaid({"phase": "stepping", "decision": {"word": "x"}, "outcome": {"status": "succeeded"}})))
    assert state.outcome.status == "succeeded"
    assert f"the data service failed with OSError: of {method}" in state.renew({})["failure"]["message"]


def test_a_root_cause_fits_into_a_renewal_whatever_a_rank_has_printed():
    cause = RootCause("algo-1", "rank0", "ä" * 10**6, 1, 1, log_tail=("ä" * 10**5,) * 100)
    assert len(json.dumps(Outcome(cause).as_json())) < MAX_MESSAGE_BYTES * 0.9
