"""Runs are reported and compared from their summaries alone."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from headrace.errors import InputError
from headrace.report import plots
from headrace.report.command import main as report
from headrace.report.compare import compare, verdict
from headrace.report.runs import describe_run
from headrace.report.timeline import Timeline, read_timeline

from tests.summaries import summary, write_run


def test_runs_stand_side_by_side_with_the_ratio_to_the_first():
    data_host = {"group": "data_group", "exit_code": 0, "cpu_utilization": 0.25, "cpu_s": {"worker": 4.0}}
    hosts = {"algo-1": data_host, "algo-2": summary("x", 1)["hosts"]["algo-1"]}
    table = compare([summary("one", 100.0), summary("two", 150.0, tf_data_mode="service", hosts=hosts)])
    assert "150 (1.50×)" in table
    assert "service, 1 data hosts" in table
    assert "data 25% (worker 4 s)" in table
    assert "0.900" in table


OTHERS = {
    "another script": ({"training_script": "cnn.py"}, "two is not compared with one: it trains cnn.py, not resnet.py."),
    "another batch": (
        {"global_batch_size": 128}, "two is not compared with one: its global batch has 128 samples, not 64."),
    "a script that it does not tell": (
        {"training_script": ""}, "two is not compared with one: it trains an unknown script, not resnet.py."),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_run_of_another_script_or_global_batch_is_listed_without_a_ratio(name, tmp_path, capsys):
    changes, said = OTHERS[name]
    hosts = {"algo-1": {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge"}}
    same = {"hosts": hosts, "training_script": "resnet.py"}
    one = write_run(tmp_path / "one", **same)
    two = write_run(tmp_path / "two", **same | {"samples_per_s": 6.0} | changes)
    three = write_run(tmp_path / "three", **same, samples_per_s=200.0)
    assert report([*map(str, (one, two, three)), "--price", "ml.p4d.24xlarge=36"]) == 0
    told = capsys.readouterr().out
    rows = {line.strip()[:20].strip(): line for line in told.splitlines()}
    assert rows["samples/s"].split()[1:] == ["100", "6", "200", "(2.00×)"]
    assert rows["$/million samples"].split()[2:] == ["100.00", "1,666.67", "50.00", "(50%", "less)"]
    assert said in told and "three trains 2.00 times as fast as one" in told and "0.06" not in told


def test_runs_that_do_not_tell_their_script_are_compared_with_each_other():
    assert "150 (1.50×)" in compare([summary("one", 100.0), summary("two", 150.0)])


def test_a_failed_run_is_told_with_its_root_cause():
    cause = {"host": "algo-2", "role": "rank1", "message": "raised ValueError: x", "log_tail": []}
    text = describe_run(summary("one", 0.0, outcome="failed", root_cause=cause, steps=0), Path("runs/one"))
    assert "one failed" in text
    assert "rank1 on algo-2: raised ValueError: x" in text


def test_a_run_that_somebody_stopped_is_no_failed_one():
    cause = {"host": "algo-2", "role": "launcher", "message": "was stopped by SIGTERM", "log_tail": []}
    stopped = summary("one", 0.0, outcome="failed", root_cause=cause, interrupted=True)
    assert "failed" not in compare([stopped]) + verdict([stopped], [None])[0]
    assert verdict([stopped], [None]) == ["one was interrupted after 10 steps."]


def test_a_report_is_a_page_without_a_network_with_the_numbers_of_the_summary(tmp_path, capsys):
    alone = write_run(tmp_path / "alone", input_bound_share=0.51, train_s=20.0, epochs=2)
    helped = write_run(tmp_path / "helped", input_bound_share=0.03, root_cause=None)
    lines = [
        {"time": 100.0, "step": 1, "step_time_ms": 20.0, "input_bound_share": 0.5},
        {"time": 105.0, "groups": {"dnn_group": {"cpu_utilization": 0.9, "gpu_utilization": 0.4}}},
        {"time": 106.0, "event": "restarted", "what": "worker on algo-1 restarted"},
        {"time": 107.0, "event": "checkpoint", "what": "checkpoint 1"},
        {"time": 108.0, "step": 2, "step_time_ms": 18.0, "input_bound_share": 0.4},
    ]
    (alone / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"time": 109.0, "st')
    assert report([str(alone), str(helped), "--output", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "alone is input-bound: it waited for data 51%" in said
    assert "helped is not input-bound: it waited for data 3% of its time. Data hosts save little time." in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "worker on algo-1 restarted" in page and "51%" in page and "CPU dnn_group" in page
    outside = re.findall(r'(?:src|href)\s*=\s*"(?!data:|#)([^"]+)"|url\((?!#)', page)
    assert not outside and "<script" not in page
    assert {path.name for path in (tmp_path / "out" / "plots").iterdir()} >= {"step_time.png", "waiting.png"}


def test_what_a_run_says_is_text_on_the_page_and_no_markup(tmp_path, capsys):
    cause = {"host": "algo-1", "role": "rank0", "message": "<script>alert(1)</script> [bold]x[/bold]", "log_tail": []}
    run = write_run(tmp_path / "run", outcome="failed", root_cause=cause)
    assert report([str(run)]) == 0
    assert "[bold]x[/bold]" in capsys.readouterr().out
    assert "<script" not in (run / "report.html").read_text()


def test_runs_are_priced_by_the_table_and_simulated_ones_only_as_what_they_stand_for(tmp_path, capsys):
    hosts = {"algo-1": {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge", "cpus": 96, "cpu_utilization": 0.5}}
    step = {"median": 1800.0, "mean": 1800.0, "p90": 1800.0}
    real = write_run(tmp_path / "real", hosts=hosts, steps_per_epoch=1000, step_time_ms=step)
    simulated = write_run(tmp_path / "simulated", hosts=hosts, simulated=True)
    price = ["--price", "ml.p4d.24xlarge=36"]
    assert report([str(real), *price]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\$/hour +36.00", said) and re.search(r"\$/epoch +18.00", said)
    assert re.search(r"\$/million samples +100.00", said)  # 100 samples/s
    assert report([str(simulated), *price]) == 0
    assert "$/hour" not in capsys.readouterr().out
    assert report([str(real), *price, "--as", "ml.g5.xlarge"]) == 0
    assert re.search(r"\$/hour +36.00", capsys.readouterr().out)  # --as does not change a real run's type
    assert report([str(simulated), *price, "--as", "data_group=ml.p4d.24xlarge"]) == 0
    assert "simulated has no price" in capsys.readouterr().out
    assert report([str(simulated), *price, "--as", "ml.p4d.24xlarge"]) == 0
    assert re.search(r"\$/hour +36.00", capsys.readouterr().out)
    with pytest.raises(InputError, match="--as"):
        report([str(simulated), "--as", "gpus=ml.p4d.24xlarge"])
    own = write_run(tmp_path / "own", hosts={"n1": {**hosts["algo-1"], "instance_type": "a100"}})
    assert report([str(own), "--as", "ml.g5.xlarge"]) == 0
    said = capsys.readouterr().out
    assert "own has no price: a host's type is unknown; give a --prices table that has the host's type" in said


def test_two_runs_of_one_name_keep_their_own_pictures(tmp_path, capsys):
    runs = [write_run(tmp_path / name, job_name="same") for name in ("one", "two")]
    assert report([*map(str, runs)]) == 0
    assert "same (2)" in capsys.readouterr().out
    names = {path.name for path in (runs[1] / "plots").iterdir()}
    assert len(names) == 6 and "cpu-same__2_.png" in names


def test_lines_that_are_no_records_are_counted_and_cost_nothing_else(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    lines = [
        {"time": 1.0, "step_time_ms": 5.0, "input_bound_share": None},
        {"time": 1.5, "step_time_ms": 5.0},
        {"time": 2.0, "groups": {"g": 3}},
        {"time": "x"},
        {"time": int("9" * 400)},
        [1],
        {"time": 3.0, "event": "host_lost", "what": "$\\frac$ lost"},
    ]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\nnonsense\n")
    assert report([str(run)]) == 0
    assert "6 lines of run&#39;s metrics.jsonl could not be read" in (run / "report.html").read_text()


def test_data_hosts_that_keep_up_are_said_to(tmp_path, capsys):
    hosts = {"algo-1": {"group": "data_group"}, "algo-2": {"group": "dnn_group"}}
    assert report([str(write_run(tmp_path / "run", input_bound_share=0.02, hosts=hosts))]) == 0
    assert "The data hosts suffice." in capsys.readouterr().out
    hosts["algo-1"]["lost"] = True
    assert report([str(write_run(tmp_path / "lost", input_bound_share=0.02, hosts=hosts))]) == 0
    assert "algo-1 was lost." in capsys.readouterr().out


def test_how_long_a_run_waited_is_not_known_without_its_ideal_step(tmp_path, capsys):
    run = write_run(tmp_path / "run", input_bound_share=1.0, ideal_step_time_ms=0.0)
    assert report([str(run)]) == 0
    assert "how long it waited for data is not known" in capsys.readouterr().out


def test_no_root_cause_is_told_of_what_was_interrupted_as_it_began():
    cause = {
        "host": "algo-2",
        "role": "launcher",
        "message": "was killed by SIGTERM and left no message",
        "signal": "SIGTERM",
    }
    stopped = summary("one", 1.0) | {"outcome": "failed", "root_cause": cause}
    assert "root cause" in describe_run(stopped, Path("runs/one"))
    assert "root cause" not in describe_run(stopped | {"interrupted": True}, Path("runs/one"))


def test_what_costs_as_much_is_said_to(tmp_path, capsys):
    host = {"algo-1": {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge"}}
    runs = [str(write_run(tmp_path / name, hosts=host)) for name in ("a", "b")]
    assert report(runs) == 0
    assert "a sample costs as much" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, "none was measured: did the script train"),
        ({"final_metrics": {"loss": None}}, "not finite   loss: training has diverged"),
        ({"interrupted": True, "outcome": "failed"}, "one was interrupted"),
    ],
)
def test_what_a_user_must_know_of_a_run_is_told_at_its_end(changes, said):
    times = {"median": 1.0, "mean": 1.0}
    assert said in describe_run(summary("one", 1.0, step_time_ms=times) | changes, Path("runs/one"))


def test_names_with_dollars_lines_that_no_figure_can_hold_and_a_strange_metrics_file_are_told(tmp_path, capsys):
    run = write_run(tmp_path / "run", job_name=r"a $\bad$ run")
    lines = [
        '{"time": 1.0, "step": 1, "step_time_ms": 20.0}',
        '{"time": 2.0, "step": 2, "step_time_ms": NaN}',
        '{"time": Infinity, "step": 3, "step_time_ms": 1.0}',
        '{"time": 1e308, "step": 3, "step_time_ms": 1.0}',
        '{"time": 3.0, "event": "restarted", "what": "\\ud800"}',
        '{"time": 4.0, "groups": {"dnn_group": {"cpu_utilization": 1%s}}}' % ("0" * 400),
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    assert report([str(run)]) == 0
    assert r"5 lines of a $\bad$ run's metrics.jsonl could not be read." in capsys.readouterr().out
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    assert report([str(run)]) == 0
    assert "metrics.jsonl could not be read: Is a directory." in capsys.readouterr().out


def test_what_goes_nowhere_costs_nothing(tmp_path):
    run = write_run(tmp_path / "run")
    command = f"{sys.executable} -m headrace compare {run} >&- 2>&-"
    assert subprocess.run(command, shell=True, timeout=60).returncode == 0


def test_time_begins_with_the_first_step_which_no_record_is_of(tmp_path):
    lines = [
        {"time": 900.0, "groups": {"dnn_group": {"cpu_utilization": 0.1}}},
        {"time": 1000.0, "step": 10, "step_time_ms": 6000.0},
        {"time": 1060.0, "step": 20, "step_time_ms": 60000.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    timeline = read_timeline(tmp_path)
    assert timeline.seconds == [54.0, 114.0]
    assert timeline.utilization["CPU dnn_group"][0] == [-46.0]


def test_the_page_has_the_summary_as_it_is_and_the_advice_names_the_runs_folder(tmp_path, capsys):
    run = write_run(tmp_path / "my run", job_name="one", input_bound_share=0.09)
    read = json.loads((run / "summary.json").read_text())
    assert report([str(run)]) == 0
    assert f"headrace plan '{run}'" in capsys.readouterr().out
    page = html.unescape((run / "report.html").read_text())
    assert json.dumps(read, indent=2, ensure_ascii=False) in page


def test_the_utilization_of_a_run_that_was_too_short_for_figures_says_so():
    drawn = plots.figure(plots.utilization(Timeline()), "utilization")
    assert [text.get_text() for text in drawn.axes[0].texts] == [plots.TOO_SHORT]
