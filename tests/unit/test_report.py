"""Runs are told and compared from their summaries alone."""

import json
from pathlib import Path

import pytest
from headrace.context import EMPTY_REPORT
from headrace.errors import InputError
from headrace.report.compare import compare
from headrace.report.runs import describe_run, read_summary


def summary(name, samples_per_s, **changes):
    host = {
        "group": "dnn_group",
        "instance_type": "x",
        "exit_code": 0,
        "cpu_utilization": 0.5,
        "cpu_s": {"trainer": 9.0},
    }
    return {
        **EMPTY_REPORT,
        "job_name": name,
        "outcome": "succeeded",
        "root_cause": None,
        "tf_data_mode": "local",
        "is_hetero": False,
        "world_size": 2,
        "global_batch_size": 64,
        "steps": 10,
        "samples_per_s": samples_per_s,
        "time_to_first_step_s": 3.0,
        "final_metrics": {"accuracy": 0.8, "val_accuracy": 0.9},
        "hosts": {"algo-1": host},
    } | changes


def test_runs_stand_side_by_side_with_the_ratio_to_the_first():
    data_host = {"group": "data_group", "exit_code": 0, "cpu_utilization": 0.25, "cpu_s": {"worker": 4.0}}
    hosts = {"algo-1": data_host, "algo-2": summary("x", 1)["hosts"]["algo-1"]}
    table = compare([summary("one", 100.0), summary("two", 150.0, tf_data_mode="service", hosts=hosts)])
    assert "150 (1.50×)" in table
    assert "service, 1 data hosts" in table
    assert "data 25% (worker 4 s)" in table
    assert "0.900" in table


def test_a_failed_run_is_told_with_its_root_cause():
    cause = {"host": "algo-2", "role": "rank1", "message": "raised ValueError: x", "log_tail": []}
    text = describe_run(summary("one", 0.0, outcome="failed", root_cause=cause, steps=0), Path("runs/one"))
    assert "one failed" in text
    assert "rank1 on algo-2: raised ValueError: x" in text


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(InputError):
        read_summary(tmp_path)


def test_a_summary_is_read_back(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(summary("one", 1.0)))
    assert read_summary(tmp_path)["job_name"] == "one"
