"""Hosts report the resources that they use, and the leader records and exports them over time."""

import json
import sys
import threading
import time
import types
import urllib.request

import pytest
from headrace.events import Event
from headrace.host.exporters.choose import to_file
from headrace.host.exporters.exporter import Exporter
from headrace.host.exporters.openmetrics import to_endpoint
from headrace.host.exporters.tensorboard import to_event_file
from headrace.host.inbox import RankSaid
from headrace.host.leader.job_timeline import Timeline
from headrace.host.usage.gpus import Gpus
from headrace.host.usage.host_usage import ResourceUsage
from headrace.report.timeline import read_timeline

from tests.ports import free_port
from tests.unit.test_topology import hetero, topology_from


def status(seconds, over_s, **changes):
    figures = {
        "seconds": {"worker": seconds}, "over_s": over_s, "cpus": 2, "memory_bytes": 100,
        "network_bytes": {"in": int(over_s * 10), "out": 0}, "gpu": None,
    }  # fmt: skip
    return {"cpu": figures | changes, "restarts": {}}


@pytest.fixture
def patient(monkeypatch):
    """Give exporters a minute to write what is left, so that a pause of this process loses nothing."""
    monkeypatch.setattr("headrace.host.exporters.exporter.CLOSE_S", 60.0)


def wait_until(condition, limit_s=180.0):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.mark.usefixtures("patient")
def test_the_leader_writes_each_groups_use_restarts_checkpoints_and_lost_hosts(tmp_path):
    topology = topology_from(hetero(), "test")
    data, dnn = topology.data_hosts[0].name, topology.leader.name
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"time": time.time() - 1, "step": 1, "step_time_ms": 10.0}) + "\n")
    writer = Timeline(topology, [Exporter("file", lambda: to_file(path), print)], {})
    gpu = {"count": 1, "samples": 36000, "busy": 20000.0}
    writer.look({data: status(1.0, 1.0), dnn: status(0.0, 1.0, gpu=gpu)}, [], now=0.0)
    later = gpu | {"samples": 36005, "busy": 20004.0}
    statuses = {data: status(6.0, 6.0) | {"restarts": {"worker": 1}}, dnn: status(1.0, 6.0, gpu=later)}
    writer.look(statuses, ["algo-9"], now=10.0)
    writer.take((0.0, RankSaid(Event("checkpoint", {"epoch": "1"}))))
    writer.end({})
    wait_until(lambda: len(path.read_text().splitlines()) == 5)
    timeline = read_timeline(tmp_path)
    groups = {topology.data_hosts[0].group: 0.5, topology.leader.group: 0.1}
    for group, share in groups.items():
        assert timeline.utilization[f"CPU {group}"][1] == [share]
    assert timeline.utilization[f"GPU {topology.leader.group}"][1] == [0.8]
    assert {what for _, what in timeline.incidents} == {f"worker on {data} restarted", "algo-9 lost"}
    assert len(timeline.checkpoints) == 1


NONSENSE = {
    "no seconds": lambda over_s: {"cpu": {"over_s": over_s, "seconds": "all", "cpus": 0}},
    "text for memory": lambda over_s: status(over_s, over_s, memory_bytes="much"),
    "a list of restarts": lambda over_s: {"cpu": None, "restarts": ["x"]},
    "restarts as text": lambda over_s: {"cpu": 3, "restarts": {"worker": "1"}},
}


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_from_another_host_costs_its_own_figures_only(tmp_path, kind):
    topology = topology_from(hetero(), "test")
    data, dnn = topology.data_hosts[0].name, topology.leader.name
    writer = Timeline(topology, [Exporter("file", lambda: to_file(tmp_path / "metrics.jsonl"), print)], {})
    for over_s in (1.0, 2.0, 3.0):
        writer.look({data: NONSENSE[kind](over_s), dnn: status(over_s, over_s)}, [], now=over_s * 100)
    writer.end({})
    wait_until(lambda: (tmp_path / "metrics.jsonl").exists())
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert all(list(record["groups"]) == [topology.leader.group] for record in records)


def test_a_file_that_cannot_be_written_slows_nothing(tmp_path):
    topology = topology_from(hetero(), "test")
    (tmp_path / "file").write_text("")
    writer = Timeline(topology, [Exporter("file", lambda: to_file(tmp_path / "file" / "metrics.jsonl"), print)], {})
    for number in range(5000):
        writer.take((0.0, RankSaid(Event("checkpoint", {"epoch": str(number)}))))
    writer.end({})


def test_gpus_are_read_through_nvidias_library(monkeypatch):
    memory = types.SimpleNamespace(used=3, total=10)
    fake = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=50 + 20 * handle),
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr("headrace.host.usage.gpus.SAMPLE_S", 0.01)
    gpus = Gpus()
    wait_until(lambda: (gpus.report() or {}).get("samples"))
    told = gpus.report()
    assert told["count"] == 2 and told["utilization"] == 0.6
    assert (told["memory_bytes"], told["memory_total_bytes"]) == (6, 20)


def test_a_host_without_a_gpu_has_no_gpu_figures(monkeypatch):
    def no_driver():
        raise RuntimeError("NVML_ERROR_LIBRARY_NOT_FOUND")

    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlInit=no_driver))
    gpus = Gpus()
    time.sleep(0.05)
    assert gpus.report() is None


def test_a_hosts_figures_have_memory_and_its_own_network():
    usage = ResourceUsage(lambda: [], own_network=True)
    usage.sample(force=True)
    told = usage.report()
    assert told["network_bytes"]["in"] >= 0 and told["memory_total_bytes"] > 0 and told["over_s"] > 0
    assert ResourceUsage(lambda: []).report()["network_bytes"] is None


@pytest.mark.usefixtures("patient")
def test_a_group_has_the_figures_that_any_of_its_hosts_has(tmp_path):
    config = hetero()
    topology = topology_from(config, "test")
    records = []
    writer = Timeline(topology, [Exporter("list", lambda: records.extend, print)], {})
    first, second = (host.name for host in topology.data_hosts[:2])
    for over_s in (1.0, 2.0):
        statuses = {first: status(over_s, over_s, network_bytes=None), second: status(0.0, over_s)}
        writer.look(statuses, [], now=over_s * 100)
    writer.end({})
    (figures,) = [each["groups"][topology.data_hosts[0].group] for each in records if "groups" in each]
    assert figures["cpu_utilization"] == 0.25 and figures["network_in_bytes_per_s"] == 10


def test_an_exporter_that_hangs_or_fails_delays_nothing():
    said, hang = [], threading.Event()
    stuck = Exporter("a hung place", lambda: lambda records: hang.wait() and None, said.append)
    never = Exporter("one that never opens", lambda: hang.wait() and None, said.append)
    broken = Exporter("a broken place", lambda: lambda records: 1 / 0, said.append)
    absent = Exporter("an absent place", lambda: 1 / 0, said.append)
    for number in range(3000):
        for exporter in (stuck, never, broken, absent):
            exporter.put({"time": number})
    for exporter in (stuck, never, broken, absent):
        exporter.close({"time": 0.0, "summary": {}})
    for name in ("a hung place", "one that never opens"):
        assert any(f"{name} was too slow" in each for each in said)
    hung = Exporter("a place that hangs at the end", lambda: lambda records: hang.wait() and None, said.append)
    hung.close({"time": 0.0, "summary": {}})
    assert said[-1].startswith("a place that hangs at the end was too slow, or did not answer: 1 records")
    refused = Exporter("a place", lambda: int("http://me:secret@nowhere/"), said.append)
    refused.close({"time": 0.0})
    assert "cannot write" in said[-1] and "secret" not in said[-1]
    for name in ("a broken place", "an absent place"):
        assert sum(f"cannot write the job's figures to {name}: ZeroDivisionError" in each for each in said) == 1
    hang.set()


@pytest.mark.usefixtures("patient")
def test_a_slow_exporter_gets_waiting_records_at_once_and_always_the_summary():
    calls = []

    def slow(records):
        time.sleep(0.1)
        calls.append(list(records))

    exporter = Exporter("a slow place", lambda: slow, print)
    for number in range(900):
        exporter.put({"time": number})
    exporter.close({"time": 900, "summary": {"outcome": "succeeded"}})
    assert [record["time"] for records in calls for record in records] == list(range(901))
    assert len(calls) < 10


@pytest.mark.usefixtures("patient")
def test_figures_from_before_the_first_step_are_not_compared_with_those_after():
    topology = topology_from(hetero(), "test")
    records, (data, *_) = [], topology.data_hosts
    writer = Timeline(topology, [Exporter("list", lambda: records.extend, print)], {})
    writer.look({data.name: status(9.0, 4.2, since=1.0)}, [], now=0.0)
    writer.look({data.name: status(1.0, 4.7, since=5.0)}, [], now=100.0)
    writer.look({data.name: status(2.0, 5.7, since=5.0)}, [], now=200.0)
    writer.end({})
    groups = [each["groups"] for each in records if "groups" in each]
    assert [each[data.group]["cpu_utilization"] for each in groups] == [0.5]


def test_tensorboard_reads_what_hosts_use_and_workers_deliver(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    records = [
        {"time": 1.0, "step": 7, "step_ms": 250.0, "data_wait_ms": 50.0, "samples_per_s": 100.0, "input_bound": 0.2},
        {"time": 2.0, "groups": {"dnn_group": {"cpu_utilization": 0.5}}},
        {"time": 3.0, "workers": {"algo-1/worker": {"batches_per_s": 12.5}}},
    ]
    to_event_file(tmp_path)(records)
    (file,) = tmp_path.iterdir()
    events = [event for event in loader.LegacyEventFileLoader(str(file)).Load() if event.summary.value]
    found = {event.summary.value[0].tag: (event.step, event.summary.value[0].simple_value) for event in events}
    assert found == {"groups/dnn_group/cpu_utilization": (7, 0.5), "workers/algo-1/worker/batches_per_s": (7, 12.5)}


def test_prometheus_reads_what_the_leader_serves(tmp_path):
    parser = pytest.importorskip("prometheus_client.parser")
    port, served = free_port(), []
    write = to_endpoint(port, "job-1", lambda: served.append(port))
    assert served == [port]
    write(
        [{"time": 1.0, "step": 7, "step_ms": 250.0, "data_wait_ms": 50.0, "samples_per_s": 100.0, "input_bound": 0.2}]
    )
    write(
        [
            {"time": 2.0, "groups": {"dnn_group": {"cpu_utilization": 0.5, "memory_bytes": 9}}},
            {"time": 2.0, "workers": {"algo-1/worker": {"batches_per_s": 12.5, "bytes_per_s": 1e6}}},
            {"time": 3.0, "event": "restarted", "what": "worker"},
        ]
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    samples = {sample.name: (sample.labels, sample.value) for family in families for sample in family.samples}
    assert samples["headrace_step_seconds"] == ({"job": "job-1"}, 0.25)
    assert samples["headrace_data_wait_seconds"][1] == 0.05
    assert samples["headrace_cpu_utilization_ratio"] == ({"job": "job-1", "group": "dnn_group"}, 0.5)
    assert samples["headrace_worker_bytes_per_second"] == ({"job": "job-1", "worker": "algo-1/worker"}, 1e6)
    assert samples["headrace_events_total"] == ({"job": "job-1", "event": "restarted"}, 1.0)
