"""Ranks count what each worker delivers, and the summary reports it."""

import pytest
from headrace.host.leader.workers import WorkersOverTime, workers
from headrace.rank import receipts as received


def receipt(at, **counts):
    return {"at": at, "from": {address.replace("_", ":"): count for address, count in counts.items()}}


NAMES = {"a:7001": "algo-1/worker", "b:7001": "algo-2/worker"}


def test_the_summary_tells_what_each_worker_delivered_to_whom_and_how_fast():
    statuses = {
        "algo-1": {"cpu": {"seconds_by_name": {"worker": 8.0}, "over_s": 10.0}},
        "algo-2": {"received": {"10": {"first": receipt(5.0, a_7001=[1, 10]), "last": receipt(5.0, a_7001=[1, 10])}}},
        "algo-3": {"received": {
            "2": {"first": receipt(90.0, a_7001=[10, 1000]),
                  "last": receipt(100.0, a_7001=[60, 6000], b_7001=[20, 2000])}
        }},
    }  # fmt: skip
    assert workers(NAMES, statuses) == {
        "algo-1/worker": {
            "batches": 61,
            "batches_per_s": 5.0,
            "bytes_per_s": 500.0,
            "processors": 0.8,
            "share": {"2": 0.75, "10": 1.0},
        },
        "algo-2/worker": {
            "batches": 20,
            "batches_per_s": 2.0,
            "bytes_per_s": 200.0,
            "processors": None,
            "share": {"2": 0.25},
        },
    }


def test_over_grpc_nothing_is_counted_and_nothing_is_claimed():
    found = workers(NAMES, {"algo-1": {"received": {}}})["algo-1/worker"]
    assert found == {"batches": None, "batches_per_s": None, "bytes_per_s": None, "processors": None, "share": {}}


@pytest.mark.parametrize(
    "said",
    [3, "x", {}, {"first": {}, "last": {}}, {"first": receipt(1), "last": {"at": "x", "from": {}}},
     {"first": receipt(1), "last": {"at": 2, "from": {"a:7001": "much"}}},
     {"first": receipt(1), "last": {"at": 2, "from": [1]}},
     {"first": receipt(1), "last": {"at": 2, "from": {"a": [1]}}}],
)  # fmt: skip
def test_nonsense_in_what_a_host_has_received_counts_as_nothing(said):
    good = {"first": receipt(0.0, a_7001=[0, 0]), "last": receipt(1.0, a_7001=[5, 50])}
    statuses = {"algo-9": {"received": {"1": said}}, "algo-8": {"received": {"0": good}}, "algo-7": {"received": said}}
    assert workers(NAMES, statuses)["algo-1/worker"]["batches_per_s"] == 5.0
    WorkersOverTime(NAMES).look(statuses)


def test_a_rank_writes_down_what_it_has_received_when_there_is_something_new(tmp_path, monkeypatch):
    counter = received.Counter()
    monkeypatch.setattr(received, "_sources", [counter.counts])
    monkeypatch.setattr(received, "WRITE_EVERY_S", 3600.0)
    receipts = received.Receipts(tmp_path, 3)
    receipts.look()
    assert received.read(tmp_path) == {}
    counter.add("a:7001", 100)
    receipts.look(force=True)
    counter.add("a:7001", 50)
    receipts.look()
    assert received.read(tmp_path)["3"]["last"]["from"] == {"a:7001": [1, 100]}, "written twice within WRITE_EVERY_S"
    receipts.look(force=True)
    told = received.read(tmp_path)["3"]
    assert (told["first"]["from"], told["last"]["from"]) == ({"a:7001": [1, 100]}, {"a:7001": [2, 150]})
    assert told["last"]["at"] >= told["first"]["at"]
    (tmp_path / "received-rank4").write_text("{")
    assert set(received.read(tmp_path)) == {"3"}
