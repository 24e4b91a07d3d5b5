"""With `--local_workers off`, only data hosts make batches."""

from pathlib import Path

import pytest
from headrace.errors import InputError
from headrace.events import WORKER_OFFERS, Event
from headrace.host.host_plan import HostPlan
from headrace.host.services.tf_data import LATE_WORKERS_S, TfDataService
from headrace.host.services.torch_feed import TorchFeed
from headrace.job.settings import Settings

from tests.unit.test_topology import hetero, topology_from


def service(kind, current="algo-3", **settings):
    topology = topology_from(hetero(current_host=current), "test")
    return topology, kind(HostPlan(topology, Settings(**{"local_workers": "off", **settings}), Path(), [], {}))


@pytest.mark.parametrize("kind", [TfDataService, TorchFeed])
def test_dnn_hosts_run_no_workers_and_nobody_waits_for_theirs(kind):
    topology, dnn = service(kind, num_of_data_workers=2)
    assert [server for server in dnn.servers(topology.current) if server.kind == "worker"] == []
    assert len([server for server in dnn.servers(topology.data_hosts[0]) if server.kind == "worker"]) == 2
    addresses = dnn.trainer_environ().get("HEADRACE_FEEDS", "")
    assert all(host.name not in addresses for host in topology.dnn_hosts)


def test_a_late_data_host_is_not_waited_for_for_ever():
    topology, leader = service(TfDataService)
    first, *_ = topology.data_hosts

    def report(host):
        _, other = service(TfDataService)
        other.take_event(Event(WORKER_OFFERS, {"name": "worker", "data_transfer_protocol": "headrace"}))
        return {host.name: other.report()}

    assert leader.decide(report(first), [], 0.0) is None
    assert leader.decide(report(first), [], LATE_WORKERS_S + 1).fields == {"protocol": "headrace"}


def test_without_data_hosts_somebody_has_to_make_batches():
    with pytest.raises(InputError, match="only data hosts make batches"):
        Settings(local_workers="off", min_data_hosts=0)
    with pytest.raises(InputError, match="expected one of on, off"):
        Settings(local_workers="auto")
