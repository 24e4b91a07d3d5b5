"""A host reports its state to the leader, even if its data service fails or a rank has printed very much."""

import random
from types import SimpleNamespace

import pytest
from headrace.events import Event
from headrace.host.control.auth import ClientAuth, ServerAuth
from headrace.host.control.channel import MAX_REPLY_BYTES
from headrace.host.inbox import HostAnswered, Inbox, LeaderSaid, ServerSaid
from headrace.host.leader.peers import Hosts
from headrace.host.state import HostState
from headrace.host.usage.host_usage import ResourceUsage
from headrace.outcome import RootCause


class Broken:
    """A data service with one method that fails."""

    mode, waited_for = "service", "nothing"

    def __init__(self, method):
        self._method = method

    def _work(self, method):
        if method == self._method:
            raise OSError(f"of {method}")

    def take_event(self, event):
        self._work("take_event")

    def hear(self, decision):
        self._work("hear")

    def report(self):
        return {}


@pytest.mark.parametrize("method", ["take_event", "hear"])
def test_a_data_service_that_fails_is_this_hosts_failure_and_costs_no_outcome(method):
    state = HostState("algo-1", ResourceUsage(lambda: []), Broken(method), Inbox(), lambda: [])
    state.take((1.0, ServerSaid(Event("x", {}))))
    state.take((2.0, LeaderSaid({"phase": "stepping", "decision": {"word": "x"}, "outcome": {"status": "succeeded"}})))
    assert state.outcome.status == "succeeded"
    assert f"the data service failed with OSError: of {method}" in state.renew({})["failure"]["message"]


def sealed(reply):
    """Return the reply as the control channel sends it."""
    server, client = ServerAuth("secret", "algo-1"), ClientAuth("secret", "algo-1")
    client.greeted(server.hello(client.hello()))
    _, seal = server.open("renew", client.seal("renew", {})[0])
    return seal.seal(reply)


def receipts(ranks, workers):
    """Return made-up numbers of the batches and bytes that each rank of a host has received from each worker."""
    draw = random.Random(1).randrange

    def until(at):
        names = [f"algo-{worker // 8 + 1}:{7001 + worker % 8}" for worker in range(workers)]
        return {"at": at, "from": {name: [draw(10**6), draw(10**12)] for name in names}}

    return {str(rank): {"first": until(1.5), "last": until(99.5)} for rank in range(ranks)}


def state_with(received):
    return HostState("algo-1", ResourceUsage(lambda: []), Broken(""), Inbox(), lambda: [], lambda: received)


@pytest.mark.parametrize("line", ["ä", "\x1b", "🚀", "漢", '"'])
def test_a_root_cause_fits_into_a_renewal_whatever_a_rank_has_printed_and_received(line):
    state = state_with(receipts(ranks=8, workers=400))
    state.fail(RootCause("algo-1", "rank0", line * 10**6, 1, 1, log_tail=(line * 10**5,) * 100))
    assert len(sealed(state.renew({}))) < MAX_REPLY_BYTES


@pytest.mark.parametrize("hosts", [1, 50, 1000])
def test_the_leader_knows_each_workers_figures_however_many_there_are(hosts):
    received = receipts(ranks=8, workers=8 * hosts)
    state = state_with(received)
    state.publish()
    leader = Hosts((SimpleNamespace(name="algo-1"),), 10.0)
    leader.take((1.0, HostAnswered("algo-1", state.renew({}), news=False)))
    assert leader.statuses["algo-1"]["received"] == received
    assert len(sealed(state.renew({}))) < MAX_REPLY_BYTES
