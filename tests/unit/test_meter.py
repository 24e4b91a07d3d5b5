"""The meter computes the figures of training from its steps, without a framework."""

import json
import pickle
import random

import numpy as np
import pytest
from headrace.rank import failure
from headrace.training import meter as meters
from headrace.training.ideal_step import IdealStep
from headrace.training.meter import Meter
from headrace.training.step_times import StepTimes, Sums


class NoScalars:
    def __init__(self, folder):
        pass

    def write(self, step, values):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def a_process_of_its_own(monkeypatch):
    monkeypatch.setattr(meters, "_ended", [])


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Function that tells a meter the ideal step, and then the steps of a training. It returns the meter's report."""
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))

    def made(ideal, *steps):
        meter = Meter(lambda: 0, lambda: 2, 32, 10, NoScalars, lambda: 3072.0)
        meter.begin(ideal)
        for step in steps:
            meter.steps(*step)
        meter.end()
        return json.loads((tmp_path / "trainer.json").read_text())

    return made


def test_the_ideal_step_time_never_exceeds_the_step_time_that_it_is_the_ideal_of(report):
    told = report(IdealStep(853.0, 20.0, 0.5), *[(1, 0.758)] * 20)
    assert told["ideal_step_time_ms"] == 758.0
    assert told["ideal_step_time_error_ms"] == 20.0
    assert told["input_bound_share"] == 0.0


def test_of_a_run_without_an_ideal_step_nobody_says_that_it_waited(report):
    assert report(IdealStep(), *[(1, 0.1)] * 20)["input_bound_share"] == 0.0


def test_an_input_bound_run_keeps_its_measured_ideal(report):
    told = report(IdealStep(50.0, 1.0, 0.1), *[(1, 0.1)] * 20)
    assert told["ideal_step_time_ms"] == 50.0
    assert told["input_bound_share"] == 0.5
    assert told["compute_cpu_s_per_step"] == 0.1
    assert told["sample_bytes"] == 3072.0


def test_where_waiting_is_measured_the_ideal_is_the_rest_of_the_step(report):
    told = report(None, *[(1, 0.1, 0.04, 0.0)] * 20)
    assert told["ideal_step_time_ms"] == pytest.approx(60.0)
    assert told["input_bound_share"] == pytest.approx(0.4)


def test_what_a_script_takes_between_steps_is_no_waiting_for_data(report):
    told = report(IdealStep(10.0, 0.1, 0.1), *[(1, 0.1, None, None, 0.05)] * 20)
    assert told["between_steps_ms"] == pytest.approx(50.0)
    assert told["ideal_step_time_ms"] == pytest.approx(60.0)
    assert told["input_bound_share"] == pytest.approx(0.4)


@pytest.mark.parametrize("step_s, share", [(0.002, 0.0), (0.012, 1 - 12 / 21)])
def test_a_callback_that_is_slow_and_rare_is_no_waiting_for_data(report, step_s, share):
    """A step takes 1 ms. Callbacks take another 1 ms after each step, and 101 ms after each tenth step."""
    told = report(
        IdealStep(1.0, 0.1, 0.001), *([(1, step_s, None, None, 0.001)] * 9 + [(1, 0.102, None, None, 0.101)]) * 10
    )
    assert told["ideal_step_time_ms"] <= told["step_time_ms"]["median"]
    assert told["input_bound_share"] == pytest.approx(share, abs=0.01)


def test_the_report_of_a_rank_that_fails_has_all_its_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    meter = Meter(lambda: 0, lambda: 2, 32, 10, NoScalars, lambda: 3072.0)
    meter.begin(IdealStep(10.0, 0.1, 0.1))
    for _ in range(13):
        meter.steps(1, 0.02)
    for each in failure.last_words:
        each()
    assert json.loads((tmp_path / "trainer.json").read_text())["steps"] == 13
    meter.end()
    assert not failure.last_words


def test_two_trainings_of_a_script_are_told_as_one_job(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    first = Meter(lambda: 0, lambda: 2, 32, 10, NoScalars, lambda: 3072.0)
    for steps, step_s, ideal_ms in ((21, 0.1, 50.0), (11, 0.4, 100.0)):
        meter = first if steps == 21 else Meter(lambda: 0, lambda: 2, 32, 10, NoScalars, lambda: 3072.0)
        meter.begin(IdealStep(ideal_ms, 0.0, ideal_ms / 1000))
        meter.expect(steps)
        for _ in range(steps):
            meter.steps(1, step_s)
        meter.epoch(1, {"loss": step_s})
        meter.end()
    told = json.loads((tmp_path / "trainer.json").read_text())
    assert (told["steps"], told["epochs"], told["steps_per_epoch"]) == (32, 2, 21)
    assert told["step_time_ms"]["mean"] == 200.0
    assert told["ideal_step_time_ms"] == pytest.approx(200 / 3, abs=0.001)
    assert told["input_bound_share"] == pytest.approx(2 / 3, abs=0.0001)
    assert told["compute_cpu_s_per_step"] == pytest.approx(0.2 / 3, abs=0.0001)
    assert told["final_metrics"] == {"loss": 0.4}
    assert "event=first_step total_steps=32" in capsys.readouterr().out
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 32


def test_a_callback_that_two_trainings_share_counts_each_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    meter = Meter(lambda: 0, lambda: 1, 32, 10, NoScalars, lambda: 0.0)
    for _ in range(2):
        meter.begin()
        for _ in range(5):
            meter.steps(1, 0.1)
        meter.epoch(1, {})
        meter.end()
    told = json.loads((tmp_path / "trainer.json").read_text())
    assert (told["steps"], told["epochs"], told["steps_per_epoch"]) == (10, 2, 5)


def test_of_trainings_that_take_turns_each_is_told_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    one, other = (Meter(lambda: 0, lambda: 1, 32, 10, NoScalars, lambda: 0.0) for _ in range(2))
    one.begin()
    other.begin()
    for _ in range(5):
        one.steps(1, 0.1)
        other.steps(1, 0.1)
    one.end()
    other.end()
    assert json.loads((tmp_path / "trainer.json").read_text())["steps"] == 5, "the report counts the other's steps"


def test_an_epoch_that_another_run_began_is_as_long_as_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    meter = Meter(lambda: 0, lambda: 1, 32, 10, NoScalars, lambda: 0.0)
    meter.begin()
    meter.resumes(80)
    for _ in range(20):
        meter.steps(1, 0.01)
    meter.resumes(80)  # a call after the first step has no effect
    meter.epoch(3, {})
    meter.end()
    told = json.loads((tmp_path / "trainer.json").read_text())
    assert (told["steps"], told["steps_per_epoch"]) == (20, 100)


def test_a_full_disk_costs_figures_and_no_step(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path / "file" / "output"))
    meter = Meter(lambda: 0, lambda: 1, 32, 1, NoScalars, lambda: 0.0)
    meter.begin(IdealStep(1.0))
    for _ in range(3):
        meter.steps(1, 0.1)
    meter.epoch(1, {"loss": 1.0})
    meter.end()
    assert capsys.readouterr().out.count("figures are lost") == 1


def test_a_loss_that_is_no_number_leaves_files_that_any_program_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    meter = Meter(lambda: 0, lambda: 2, 32, 10, NoScalars, lambda: 3072.0)
    meter.begin(IdealStep(10.0, 0.1, 0.1))
    meter.steps(1, 0.02)
    meter.epoch(1, {"loss": float("nan"), "accuracy": float("inf")})
    meter.end()
    texts = [path.read_text() for path in (tmp_path / "trainer.json", *tmp_path.glob("**/metrics.jsonl"))]
    assert len(texts) == 2 and not any("NaN" in text or "Infinity" in text for text in texts)
    assert json.loads(texts[0])["final_metrics"] == {"loss": None, "accuracy": None}


def test_the_first_execution_of_several_steps_is_start_up(report):
    told = report(None, (16, 10.0), *[(16, 0.64)] * 5)
    assert (told["first_step_s"], told["steps"]) == (10.0, 96)
    assert told["step_time_ms"] == {"median": 40.0, "mean": 40.0, "p90": 40.0}


def test_no_figure_over_time_has_the_first_step_in_it_nor_gives_way_to_a_metric_of_its_name(report, tmp_path):
    report(None, (1, 60.0), *[(1, 0.1)] * 19)
    meter = Meter(lambda: 0, lambda: 1, 32, 10, NoScalars, lambda: 0.0)
    meter.begin()
    meter.epoch(1, {"time": 1.0, "step": -1.0, "loss": 2.0})
    meter.end()
    *steps, epoch = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [round(each["step_time_ms"]) for each in steps] == [100, 100]
    assert (epoch["step"], epoch["loss"]) == (20, 2.0) and epoch["time"] > 1e9


def test_the_end_of_a_training_leaves_the_last_words_of_another(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setattr(failure, "last_words", [])
    one, other = (Meter(lambda: 0, lambda: 1, 32, 10, NoScalars, lambda: 0.0) for _ in range(2))
    one.begin()
    other.begin()
    one.end()
    assert failure.last_words == [other.write_report]
    other.end()
    assert not failure.last_words


def many_steps(count):
    """Return steps of 10 to 1000 ms in random order."""
    draw = random.Random(1)
    return [(1, 0.01 * 100 ** draw.random(), 0.002, None, 0.001) for _ in range(count)]


def test_the_mean_is_of_all_steps_and_the_spread_of_the_latest_ones(report, monkeypatch):
    monkeypatch.setattr("headrace.training.step_times.SPREAD_OF", 500)
    steps = many_steps(2000)
    told = report(None, *steps)["step_time_ms"]
    times_ms = np.array([took_s for _, took_s, *_ in steps[1:]]) * 1000
    assert told["mean"] == pytest.approx(times_ms.mean(), abs=0.001)
    assert told["median"] == pytest.approx(np.median(times_ms[-500:]), abs=0.001)
    assert told["p90"] == pytest.approx(np.percentile(times_ms[-500:], 90), abs=0.001)


def test_a_run_needs_no_more_memory_for_more_steps():
    times = StepTimes()
    sizes = []
    for _ in range(2):
        for made, took_s, waited_s, _, between_s in many_steps(20_000):
            times.made(Sums(made, took_s, waited_s, between_s))
        sizes.append(len(pickle.dumps(times)))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


def test_a_figure_over_time_is_of_the_steps_since_the_last_one(report, tmp_path):
    report(None, (1, 60.0), *[(1, 0.1)] * 9, *[(1, 0.3)] * 10)
    steps = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [round(each["step_time_ms"]) for each in steps] == [100, 300]
