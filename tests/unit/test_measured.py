"""The plan computes the costs of a run's workload from its summary."""

import pytest
from headrace.errors import InputError
from headrace.report.candidates import options
from headrace.report.measured import RECEIVE_CPU_S_PER_BATCH, measured
from headrace.report.predict import UTILIZATION

from tests.unit.test_plan import TABLE, plan, summary


def test_a_simulated_hosts_cpus_stand_for_all_of_the_types(tmp_path, capsys):
    """If one simulated CPU is busy for a part of each step, all 96 CPUs of the instance type count as equally busy."""
    host = {"group": "dnn_group", "instance_type": "ml.x.y", "cpus": 1, "cpu_s": {}}
    run = summary(simulated=True, hosts={"algo-1": host}, rank_cpu_s_per_step=0.192 * UTILIZATION / 8)
    found = measured(run, TABLE, TABLE.types["ml.p4d.24xlarge"])
    assert options(found, [], 0)[0].prediction.step_s == pytest.approx(0.192, rel=0.01)
    with pytest.raises(InputError, match="leave out --as, which is for simulated runs"):
        measured(summary(), TABLE, TABLE.types["ml.p4d.24xlarge"])


def test_a_service_run_is_measured_by_its_workers():
    hosts = {
        "algo-1": {"group": "data_group", "instance_type": "ml.c5.18xlarge", "cpus": 72, "cpu_s": {"worker": 2048.0}},
        "algo-2": {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge", "cpus": 96, "cpu_s": {"worker": 0.0}},
    }
    service = {"tf_data_mode": "service", "is_hetero": True, "hosts": hosts, "sample_bytes": 0.0}
    run = measured(summary(compute_cpu_s_per_step=0.2, rank_cpu_s_per_step=0.3, **service), TABLE)
    assert run.has_service and run.has_data_hosts
    assert run.work.make_cpu_s == pytest.approx(1e-3)  # 2,048 s for 1,000 steps of 2,048 samples
    assert run.work.receive_cpu_s == pytest.approx(RECEIVE_CPU_S_PER_BATCH * 8 / 2048)  # the other CPU time is waiting
    assert any("sample's size is not known" in note for note in run.notes)


def service_run(**changes):
    hosts = {
        "algo-1": {"group": "data_group", "instance_type": "ml.c5.18xlarge", "cpus": 72, "cpu_s": {"worker": 2048.0}},
        "algo-2": {"group": "dnn_group", "instance_type": "ml.p4d.24xlarge", "cpus": 96, "cpu_s": {"worker": 0.0}},
    }
    workers = {
        "algo-1/worker": {"batches": 16_000, "batches_per_s": 80.0, "bytes_per_s": 80.0 * 256 * 3072, "share": {}}
    }
    service = {"tf_data_mode": "service", "is_hetero": True, "hosts": hosts, "workers": workers, "sample_bytes": 0.0}
    return summary(compute_cpu_s_per_step=0.2, rank_cpu_s_per_step=0.21, **service | changes)


def test_what_workers_made_beyond_the_steps_costs_no_step():
    """Workers also make batches for evaluations and for steps that a failed run never reached. Here the workers made
    16,000 batches, enough for 2,000 steps. The run had 1,000 steps."""
    run = measured(service_run(), TABLE)
    assert run.work.sample_bytes == pytest.approx(3072)
    assert run.work.make_cpu_s == pytest.approx(0.5e-3, rel=0.01)


def test_of_a_run_with_data_hosts_of_known_types_the_own_step_is_predicted_too(tmp_path, capsys):
    slow = {"median": 900.0, "mean": 900.0, "p90": 900.0}
    assert measured(service_run(), TABLE).own_step_s == pytest.approx(0.086)
    assert "ms longer than its processors" in plan(tmp_path, capsys, **service_run(step_time_ms=slow))
    assert measured(service_run(simulated=True), TABLE).own_step_s is None


def test_a_models_cpu_time_that_was_not_measured_is_what_ranks_used_less_receiving():
    hosts = {
        "algo-1": {"group": "data_group", "instance_type": "ml.c5.18xlarge", "cpus": 72, "cpu_s": {"worker": 2048.0}},
        "algo-2": {"group": "dnn_group", "instance_type": "ml.c5.18xlarge", "cpus": 72, "cpu_s": {}},
    }
    run = measured(summary(tf_data_mode="service", is_hetero=True, hosts=hosts, rank_cpu_s_per_step=5.2), TABLE)
    assert run.work.compute_cpu_s == pytest.approx(5.2 * 8 / 2048, rel=0.01)
    assert any("the cost of receiving was not measured" in note for note in run.notes)
