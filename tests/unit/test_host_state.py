"""What a host knows of itself and tells: whatever its data service does, and however much a rank has printed."""

import random
from types import SimpleNamespace

import pytest
from headrace.events import Event
from headrace.host.control.auth import ClientAuth, ServerAuth
from headrace.host.control.channel import MAX_MESSAGE_BYTES
from headrace.host.control.in_parts import Joined
from headrace.host.inbox import HostAnswered, Inbox, LeaderSaid, ServerSaid
from headrace.host.leader.peers import Hosts
from headrace.host.state import HostState
from headrace.host.usage.host_usage import ResourceUsage
from headrace.outcome import RootCause


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


def sealed(reply):
    """The reply as it travels."""
    server, client = ServerAuth("secret", "algo-1"), ClientAuth("secret", "algo-1")
    client.greeted(server.hello(client.hello()))
    _, seal = server.open("renew", client.seal("renew", {})[0])
    return seal.seal(reply)


def receipts(ranks, workers):
    """What the ranks of a host have received, each from all workers."""
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
    assert len(sealed(state.renew({}))) < MAX_MESSAGE_BYTES


@pytest.mark.parametrize(("hosts", "whole_bytes"), [(1, 6_000), (50, 267_000), (1000, 5_463_000)])
def test_an_answer_is_small_and_the_leader_knows_each_workers_figures_however_many_there_are(hosts, whole_bytes):
    received = receipts(ranks=8, workers=8 * hosts)
    state = state_with(received)
    leader = Hosts((SimpleNamespace(name="algo-1"),), 10.0)
    sizes = []
    for second in range(1000):
        reply = state.renew({})
        sizes.append(len(sealed(reply)))
        leader.take((float(second), HostAnswered("algo-1", reply, news=False)))
        state.take((float(second), LeaderSaid({"phase": "stepping"})))
        state.publish()  # as each second, whoever has called
        if leader.statuses["algo-1"]["received"]:
            break
    assert leader.statuses["algo-1"]["received"] == received
    assert len(sealed(state.published())) > whole_bytes
    assert max(sizes) < 25_000


def test_a_part_that_is_lost_costs_no_more_than_its_record():
    received = receipts(ranks=8, workers=400)
    state, joined = state_with(received), Joined()
    state.publish()
    parts = []
    while len(parts) < state.renew({})["received"]["of"]:
        parts.append(state.renew({})["received"])
        state.take((1.0, LeaderSaid({})))
    assert len(parts) > 2
    for part in [*parts[:1], *parts[2:]]:
        assert joined.take(part) == {}
    for part in (None, 3, {}, {"place": 0, "record": 1, "of": 1, "text": "{"}, {"place": 0, "record": 1, "text": 5}):
        assert joined.take(part) == {}
    for part in [parts[0], parts[0], *parts[1:]]:  # that one comes twice does no harm
        joined.take(part)
    assert joined.take(None) == received
