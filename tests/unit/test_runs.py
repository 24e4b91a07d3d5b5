"""The summary of a run can be read. If the summary is broken, the user gets a one-line error."""

import json
import re
from pathlib import Path

import pytest
from headrace.errors import InputError
from headrace.report.command import main as report
from headrace.report.compare import compare
from headrace.report.runs import describe_run, read_summary

from tests.summaries import summary, write_run


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(InputError):
        read_summary(tmp_path)


def test_a_summary_is_read_back(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(summary("one", 1.0)))
    assert read_summary(tmp_path)["job_name"] == "one"


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"hosts": {"algo-1": {"gro',
        '{"hosts": {"algo-1": 3}, "job_name": "x", "outcome": "succeeded"}',
        '{"hosts": {}, "job_name": "x", "outcome": "succeeded"}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "steps": "many"}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "steps": -5}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "steps": 1' + "0" * 400 + "}",
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "step_time_ms": {"median": []}}',
        '{"hosts": {"algo-1": {"cpu_s": {"trainer": "1"}}}, "job_name": "x", "outcome": "succeeded"}',
        '{"hosts": {"algo-1": {}}, "job_name": 7, "outcome": "succeeded"}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "input_bound_share": 2}',
        '{"hosts": {"algo-1": {"restarts": []}}, "job_name": "x", "outcome": "succeeded"}',
        '{"hosts": {"algo-1": {"gpu": {"utilization": 0.5}}}, "job_name": "x", "outcome": "succeeded"}',
        '{"hosts": {"algo-1": {"most_memory_bytes": "x"}}, "job_name": "x", "outcome": "succeeded"}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "workers": [1]}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "workers": {"algo-1:6001": 5}}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "workers": {"a": {"share": [1]}}}',
        '{"hosts": {"algo-1": {}}, "job_name": "x", "outcome": "succeeded", "workers": {"a": {"batches": "1"}}}',
        '{"hosts": ' + "[" * 100_000,
        "\ud800",
    ],
)
def test_a_foreign_or_half_written_summary_is_one_clear_line(tmp_path, content):
    (tmp_path / "summary.json").write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(InputError) as refused:
        report([str(tmp_path)])
    assert "summary.json" in str(refused.value) and "\n" not in str(refused.value)


def test_a_run_of_an_older_headrace_is_told_too(tmp_path):
    hosts = {"algo-1": {"group": "dnn_group", "exit_code": 0, "cpu_utilization": 0.5}}
    old = {"job_name": "old", "outcome": "succeeded", "hosts": hosts}
    (tmp_path / "summary.json").write_text(json.dumps(old))
    told = compare([read_summary(tmp_path)])
    assert "old" in told
    for name in ("step time, median", "ideal step time", "waiting for data", "samples/s", "training time"):
        assert re.search(rf"{name} +-\s", told)
    assert "waiting" not in describe_run(read_summary(tmp_path) | {"steps": 3}, tmp_path)


def test_names_cannot_move_the_terminals_cursor(tmp_path):
    hosts = {"a\x1b[2J": {"group": "dnn_group", "exit_code": 0}}
    run = write_run(tmp_path / "run", job_name="\x1b]0;title\x07one", hosts=hosts)
    told = compare([read_summary(run)]) + describe_run(read_summary(run), run)
    assert "\x1b" not in told and "\x07" not in told and r"\x1b]0;title\x07one" in told


def test_small_figures_keep_their_digits():
    times = {"median": 0.25, "mean": 0.25, "p90": 0.3}
    told = compare([summary("one", 0.4, step_time_ms=times, ideal_step_time_ms=0.123)])
    assert "0.25 ms" in told and "0.123" in told and re.search(r"samples/s +0\.4\b", told)


def test_a_mean_that_is_far_above_the_median_is_named_since_the_share_is_of_it():
    times = {"median": 5.0, "mean": 220.0, "p90": 9.0}
    told = describe_run(summary("one", 10.0, step_time_ms=times, ideal_step_time_ms=3.6), Path("runs/one"))
    assert "10 of 5 ms (median; mean 220 ms; ideal 3.6 ms)" in told
