"""A preflight of real ranks checks the ranks and their links. It names the rank that fails."""

import json

import pytest

from tests.integration.test_horovod import mpirun

TIMEOUT_S = 15
STAGES = ("the exchange of host names", "messages of rank 0 on algo-1 with rank 2", "broadcast", "gather", "allreduce")


def preflight(tmp_path, monkeypatch, *argv, ranks=4):
    monkeypatch.setenv("HEADRACE_PREFLIGHT_TIMEOUT_S", str(TIMEOUT_S if "stops" in argv else 60))
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    return mpirun("preflight.py", tmp_path, *argv, ranks=ranks)


def test_every_rank_link_and_collective_is_tried_and_told(tmp_path, monkeypatch):
    done = preflight(tmp_path, monkeypatch)
    assert done.returncode == 0, done.stdout[-3000:]
    report = json.loads((tmp_path / "preflight.json").read_text())
    assert [(rank["rank"], rank["host"], rank["local_rank"]) for rank in report["ranks"]] == [
        (number, "algo-1", number) for number in range(4)
    ]
    assert [link["ranks"] for link in report["links"]] == ["0-1", "0-2", "0-3"]
    assert all(link["latency_ms"] > 0 and link["mb_per_s"] > 0 for link in report["links"])
    assert set(report["collectives"]) == {"broadcast", "gather and average", "allreduce"}
    assert "preflight: ranks: 4, hosts: 1" in done.stdout
    assert "headrace event=preflight_passed ranks=4 hosts=1 slow_links=0" in done.stdout


def test_one_rank_has_nobody_to_talk_to_and_passes(tmp_path, monkeypatch):
    done = preflight(tmp_path, monkeypatch, ranks=1)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "preflight_passed ranks=1" in done.stdout


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_that_stops_is_named_at_the_deadline_whatever_it_was_doing(stage, tmp_path, monkeypatch):
    done = preflight(tmp_path, monkeypatch, "2", stage, "stops")
    assert done.returncode != 0
    assert "headrace event=preflight_failed rank=2 " in done.stdout, done.stdout[-3000:]
    assert f"%20{TIMEOUT_S}%20s%20(preflight_timeout_s)" in done.stdout


def test_where_rank_0_itself_stops_the_others_name_it(tmp_path, monkeypatch):
    done = preflight(tmp_path, monkeypatch, "0", "allreduce", "stops")
    assert done.returncode != 0
    assert "headrace event=preflight_failed rank=0 " in done.stdout, done.stdout[-3000:]


def test_bytes_that_change_on_the_way_are_found(tmp_path, monkeypatch):
    done = preflight(tmp_path, monkeypatch, "1", "", "lies", ranks=2)
    assert done.returncode != 0
    assert "the%20bytes%20that%20arrived%20differ%20from%20those%20sent" in done.stdout, done.stdout[-3000:]
