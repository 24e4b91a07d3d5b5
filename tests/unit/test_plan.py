"""`headrace plan` predicts and advises from formulas and summaries alone."""

import json

import pytest
from headrace.errors import InputError, SetupError
from headrace.job.instances import read_instances
from headrace.rank.context import EMPTY_REPORT
from headrace.report.advice import advise
from headrace.report.candidates import options
from headrace.report.measured import measured
from headrace.report.plan import main
from headrace.report.predict import UTILIZATION

TABLE = read_instances()


def summary(**changes):
    """Return the summary of a homogeneous run: 8 GPUs, 96 CPUs, steps of 192 ms with 86 ms of arithmetic."""
    batch, make_s = 8 * 256, 0.192 * 96 * UTILIZATION / 8  # CPU seconds of a rank's batch
    host = {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge", "cpus": 96, "cpu_utilization": 1.0, "cpu_s": {}}
    return EMPTY_REPORT | {
        "job_name": "run", "outcome": "succeeded", "root_cause": None, "framework": "tensorflow",
        "tf_data_mode": "local", "is_hetero": False,
        "world_size": 8, "global_batch_size": batch, "steps": 1000, "epochs": 2, "steps_per_epoch": 500,
        "step_time_ms": {"median": 192.0, "mean": 192.0, "p90": 192.0}, "ideal_step_time_ms": 86.0,
        "rank_cpu_s_per_step": make_s, "sample_bytes": 32 * 32 * 3, "train_s": 192.0, "samples_per_s": batch / 0.192,
        "hosts": {"algo-1": host},
    } | changes  # fmt: skip


def plan(tmp_path, capsys, *flags, **changes):
    (tmp_path / "summary.json").write_text(json.dumps(summary(**changes)))
    assert main([str(tmp_path), *flags]) == 0
    return capsys.readouterr().out


def test_the_advice_names_hosts_and_flags_and_prices(tmp_path, capsys):
    said = plan(tmp_path, capsys, "--data_instance_type", "ml.c5.18xlarge")
    assert "Rent 2 × ml.c5.18xlarge" in said or "Rent 3 × ml.c5.18xlarge" in said
    assert "start_job.py --num_of_data_instances" in said
    assert "cheaper a sample" in said
    assert f"as of {TABLE.as_of}" in said


def test_training_that_does_not_wait_gets_no_data_hosts(tmp_path, capsys):
    said = plan(tmp_path, capsys, ideal_step_time_ms=190.0)
    assert "Don't add data hosts" in said
    assert "start_job.py --no-is_hetero" in said


def test_callbacks_that_are_slow_and_rare_count_as_the_trainings_own_time(tmp_path, capsys):
    times = {"median": 100.0, "mean": 192.0, "p90": 192.0}
    said = plan(tmp_path, capsys, step_time_ms=times, between_steps_ms=100.0, input_bound_share=0.02)
    assert "Don't add data hosts" in said


@pytest.mark.parametrize("mean_ms, told", [(200.0, False), (400.0, True)])
def test_time_that_neither_processors_nor_network_explain_is_told(tmp_path, capsys, mean_ms, told):
    times = {"median": mean_ms, "mean": mean_ms, "p90": mean_ms}
    said = plan(tmp_path, capsys, step_time_ms=times)
    assert ("disks or S3" in said) == told
    assert not told or said.index("208 ms longer") < said.index("Rent")


def test_a_run_that_was_faster_than_its_own_processor_time_allows_is_said_to_contradict_it(tmp_path, capsys):
    times = {"median": 100.0, "mean": 100.0, "p90": 100.0}
    said = plan(tmp_path, capsys, step_time_ms=times, ideal_step_time_ms=50.0)
    assert said.index("192.0 ms for this run, but its steps took 100.0 ms") < said.index("Rent")
    data = {"group": "data_group", "instance_type": "ml.c5.18xlarge", "cpus": 72, "cpu_s": {"worker": 1e6}}
    hosts = {"algo-2": data, **summary()["hosts"]}
    changes = {"step_time_ms": times, "hosts": hosts, "tf_data_mode": "service", "simulated": True}
    changes |= {"rank_cpu_s_per_step": 0.1, "compute_cpu_s_per_step": 0.05}
    assert "Plan from a longer run" in plan(tmp_path, capsys, **changes)
    data["cpu_s"]["worker"] = 100.0
    assert "Plan from a longer run" not in plan(tmp_path, capsys, **changes)


def test_a_run_that_was_seen_not_to_wait_gets_no_data_hosts_whatever_the_formulas_say(tmp_path, capsys):
    times = {"median": 100.0, "mean": 100.0, "p90": 100.0}
    said = plan(tmp_path, capsys, step_time_ms=times, ideal_step_time_ms=98.0)
    assert "Don't add data hosts: the training spends only 2% of its time waiting for data" in said


def test_where_all_hosts_cost_more_than_they_save_the_advice_is_not_to(tmp_path, capsys):
    said = plan(tmp_path, capsys, "--data_instance_type", "ml.c5.xlarge", "--price", "ml.c5.xlarge=500")
    assert "Don't add data hosts. Either they cost more than they save" in said


def test_a_simulated_run_has_no_price_unless_it_stands_for_a_type(tmp_path, capsys):
    said = plan(tmp_path, capsys, simulated=True)
    assert "the run was simulated, so hosts here have no price" in said
    assert "cheapest" not in said
    said = plan(tmp_path, capsys, "--as", "ml.p4d.24xlarge", simulated=True)
    assert "a dnn host's CPUs (96) stand for 96 vCPUs of ml.p4d.24xlarge" in said


def test_the_flags_start_a_job_of_the_runs_framework_and_of_no_types_here(tmp_path, capsys):
    types = ["--data_instance_type", "ml.c5.18xlarge"]
    assert "start_job.py --framework pytorch --num_of_data" in plan(tmp_path, capsys, *types, framework="pytorch")
    said = plan(tmp_path, capsys, simulated=True, framework="pytorch")
    assert "start_job.py --no-is_cloud_job --framework pytorch --num_of_data" in said


def test_another_number_of_ranks_than_the_type_would_have_is_told_with_the_batch_that_makes_up_for_it(tmp_path, capsys):
    said = plan(tmp_path, capsys, "--as", "ml.g5.12xlarge", simulated=True)
    assert "each ml.g5.12xlarge has 4 ranks, a dnn host of the run had 8. Give each rank a batch of 512, so" in said
    assert "Give each rank" not in plan(tmp_path, capsys, "--as", "dnn_group=ml.p4d.24xlarge", simulated=True)


def test_the_whole_of_the_planned_training_is_told(tmp_path, capsys):
    said = plan(tmp_path, capsys, "--epochs", "1000", ideal_step_time_ms=190.0)
    assert "in all: 1,024,000,000 samples in 26.7 h, $" in said


def test_the_fastest_within_a_budget_and_the_cheapest_within_a_deadline():
    run = measured(summary(), TABLE)
    found = options(run, [kind for kind in TABLE.types.values() if not kind.gpus], 8)
    samples = 1e9
    budget = min(each.cost_usd(samples) for each in found) * 1.1
    advice = advise(found, samples, budget, None)
    assert advice.choice.cost_usd(samples) <= budget
    hours = min(each.hours(samples) for each in found) * 1.2
    advice = advise(found, samples, None, hours)
    assert advice.choice.hours(samples) <= hours
    with pytest.raises(InputError, match="no job keeps within these limits"):
        advise(found, samples, 0.01, None)


def test_json_has_every_option_and_the_flags(tmp_path, capsys):
    flags = ["--json", "--max_data_hosts", "2", "--data_instance_type", "ml.c5.18xlarge"]
    flags = ["--json", "--max_data_hosts", "2", "--data_instance_type", "ml.c5.18xlarge"]
    told = json.loads(plan(tmp_path, capsys, *flags))
    assert len(told["options"]) == 1 + 2 * 2
    assert told["flags"].startswith("--num_of_data_instances")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 0}, "measured no step"),
        ({"ideal_step_time_ms": 0.0}, "no ideal step time"),
        ({"rank_cpu_s_per_step": 0.0}, "has not measured the CPU time"),
    ],
)
def test_a_run_that_has_measured_too_little_is_refused_with_the_reason(changes, message):
    with pytest.raises(InputError, match=message):
        measured(summary(**changes), TABLE)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--max_data_hosts", "0"], "--max_data_hosts is 0"),
        (["--max_data_hosts", "1000"], "expected 1 to 100"),
        (["--epochs", "1" + "0" * 400], "--epochs is 1000000"),
        (["--as", "data_group=ml.c5.18xlarge"], "use --as for dnn hosts"),
        (["--as", "ml.nothing.large"], "--as ml.nothing.large"),
        (["--as", "gpus=ml.p4d.24xlarge"], "not of the form"),
        (["--as", "dnn_group="], "lacks ''"),
        (["--data_instance_type", "ml.nothing.large"], "lacks it"),
        (["--budget_usd", "1", "--price", "x"], "--price 'x'"),
        (["--budget_usd", "nan"], "--budget_usd is nan"),
        (["--max_hours", "0"], "--max_hours is 0"),
    ],
)
def test_wrong_flags_are_refused(tmp_path, flags, message):
    (tmp_path / "summary.json").write_text(json.dumps(summary(simulated="--as" in flags)))
    with pytest.raises(InputError, match=message):
        main([str(tmp_path), *flags])


def test_the_flags_have_the_runs_ranks_where_the_type_has_others(tmp_path, capsys):
    assert "--processes_per_host" not in plan(tmp_path, capsys)
    assert "--processes_per_host 1" in plan(tmp_path, capsys, world_size=1)


def test_time_outside_steps_is_told(tmp_path, capsys):
    assert "50% of the run's training time went to" in plan(tmp_path, capsys, train_s=384.0)
    assert "training time went to" not in plan(tmp_path, capsys)
    started_up = plan(tmp_path, capsys, train_s=384.0, first_step_s=192.0)
    assert "training time went to" not in started_up, "a first step that compiles counts as time outside steps"


def test_of_jobs_as_cheap_the_faster_one_is_advised(tmp_path, capsys):
    price = ["--price", "ml.c5.18xlarge=18.5", "--max_data_hosts", "1"]
    said = plan(tmp_path, capsys, "--data_instance_type", "ml.c5.18xlarge", *price)
    assert "Rent 1 × ml.c5.18xlarge: 1.75 times as fast" in said


def test_where_both_placements_are_as_fast_the_default_is_advised():
    found = options(measured(summary(), TABLE), [TABLE.types["ml.c6i.32xlarge"]], 2)
    assert advise(found, 1e6, 1e6, None).choice.placement == "both"


def test_a_homogeneous_run_with_workers_is_advised_as_one(tmp_path, capsys):
    said = plan(tmp_path, capsys, tf_data_mode="service", ideal_step_time_ms=190.0, compute_cpu_s_per_step=1.0)
    assert "--no-is_hetero --num_of_dnn_instances 1 --dnn_instance_type ml.p4d.24xlarge --tf_data_mode service" in said


def test_without_a_whole_epoch_nothing_is_said_of_epochs(tmp_path, capsys):
    said = plan(tmp_path, capsys, epochs=0, steps_per_epoch=0)
    (row,) = [line for line in said.splitlines() if "dnn hosts alone" in line]
    assert row.split()[-1] == "-"
    with pytest.raises(InputError, match="finished no epoch"):
        plan(tmp_path, capsys, "--epochs", "3", epochs=0, steps_per_epoch=0)


def test_a_plot_is_drawn_and_a_bad_name_for_it_is_refused(tmp_path, capsys):
    plan(tmp_path, capsys, "--plot", str(tmp_path / "plan.png"))
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match=r"ends in \.png"):
        plan(tmp_path, capsys, "--plot", str(tmp_path / "plan.txt"))
    with pytest.raises(SetupError, match="cannot write"):
        plan(tmp_path, capsys, "--plot", "/proc/plan.png")


def test_a_failed_run_is_planned_with_and_said_to_have_failed(tmp_path, capsys):
    assert "the run failed after 1000 steps; the plan is based on these steps" in plan(
        tmp_path, capsys, outcome="failed"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"ideal_step_time_ms": float("nan")},
        {"world_size": 0},
        {"step_time_ms": {"median": 0.0, "mean": 0.0, "p90": 0.0}},
        {"rank_cpu_s_per_step": -1.0},
        {"hosts": {"algo-1": {"group": "data_group", "cpus": 4}}},
        {"hosts": {"algo-1": {"group": "dnn_group", "cpus": 0}}},
        {"hosts": {"algo-1": {"cpus": 4}}},
        {"hosts": {"algo-1": {"group": "dnn_group", "cpus": 4}, "algo-2": {"group": "data_group"}}},
        {"input_bound_share": 1.5},
        {"steps": True},
        {"final_metrics": {"accuracy": float("nan")}},
        {"final_metrics": {"accuracy": "high"}},
        {"root_cause": {"host": "algo-1", "role": "rank0", "message": "\ud800"}},
    ],
)
def test_a_summary_that_makes_no_sense_is_refused_in_one_line(tmp_path, changes):
    (tmp_path / "summary.json").write_text(json.dumps(summary(**changes)))
    with pytest.raises(InputError) as refused:
        main([str(tmp_path)])
    assert "\n" not in str(refused.value)
