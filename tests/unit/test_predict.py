"""Step times are predicted from formulas alone."""

import itertools

import pytest
from headrace.report.candidates import options
from headrace.report.measured import measured
from headrace.report.predict import UTILIZATION, Group, Workload, predict
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_plan import TABLE, summary

FAST = 1e12  # bytes/s


def test_the_published_sample_comes_out_of_the_formulas():
    """Two ml.c5.18xlarge cut an ml.p4d.24xlarge's step from 192 to 86 ms. Samples cost 46 % less at 2022's prices."""
    table = TABLE.with_prices(["ml.p4d.24xlarge=37.688", "ml.c5.18xlarge=3.672"])
    run = measured(summary(), table)
    found = options(run, [table.types["ml.c5.18xlarge"]], 2)
    alone, best = found[0], next(each for each in found if each.data_hosts == 2 and each.placement == "both")
    assert alone.prediction.step_s == pytest.approx(0.192, rel=0.01)
    assert best.prediction.step_s == pytest.approx(0.086)
    assert alone.prediction.step_s / best.prediction.step_s == pytest.approx(2.2, abs=0.05)
    assert 1 - best.usd_per_million / alone.usd_per_million == pytest.approx(0.46, abs=0.01)
    assert best.prediction.limit == "the model's arithmetic"


def test_both_is_faster_than_either_where_the_trainers_host_has_cpus_to_spare():
    work = Workload(batch=1000, ideal_step_s=0.01, make_cpu_s=1e-3)
    trainer, data = Group(1, 4, FAST), Group(1, 8, FAST)
    times = {each: predict(work, trainer, data, each).step_s for each in ("trainer", "data", "both")}
    assert times["both"] < times["data"] < times["trainer"]
    assert times["both"] == pytest.approx(1 / (12 * UTILIZATION), rel=0.01)


def test_a_network_can_be_the_limit():
    work = Workload(batch=1000, ideal_step_s=0.001, make_cpu_s=1e-6, sample_bytes=600_000)
    prediction = predict(work, Group(1, 96, 1.25e9), Group(4, 96, 1.25e9), "data")
    assert prediction.limit == "network of dnn hosts"
    assert prediction.step_s == pytest.approx(0.48)


@given(
    batch=st.integers(1, 10_000),
    ideal=st.floats(1e-3, 1.0),
    make=st.floats(0, 0.1),
    compute=st.floats(0, 0.01),
    size=st.floats(0, 1e6),
    hosts=st.integers(1, 8),
    cpus=st.integers(1, 96),
)
def test_more_data_hosts_never_make_a_step_slower_and_no_step_is_shorter_than_the_ideal(
    batch, ideal, make, compute, size, hosts, cpus
):
    work = Workload(batch, ideal, make, compute, size, receive_cpu_s=make / 50, send_cpu_s=make / 50)
    trainer = Group(1, cpus, 1e9)
    steps = [predict(work, trainer, Group(count, cpus, 1e9), "both").step_s for count in range(1, hosts + 1)]
    assert all(after <= before * 1.0001 for before, after in itertools.pairwise(steps))
    assert min(steps) >= ideal


def test_a_trainer_that_is_busy_itself_is_said_to_be_the_limit():
    work = Workload(batch=100, ideal_step_s=0.01, make_cpu_s=1e-5, compute_cpu_s=2e-4)
    assert predict(work, Group(1, 1, FAST), Group(1, 1, FAST), "both").limit == "the model's own CPU time"


def test_a_pipeline_in_the_trainers_process_holds_up_its_step_on_a_host_with_one_processor_only():
    work, nobody = Workload(batch=100, ideal_step_s=0.01, make_cpu_s=2e-5), Group(0, 0, FAST)
    one, two = (predict(work, Group(1, cpus, FAST), nobody, "trainer") for cpus in (1, 2))
    assert (one.limit, one.step_s) == ("the model's arithmetic", pytest.approx(0.0115))
    assert (two.limit, two.step_s) == ("the model's arithmetic", pytest.approx(0.01))
    assert predict(work, Group(1, 1, FAST), Group(1, 1, FAST), "data").step_s == pytest.approx(0.01)


def test_dnn_hosts_that_make_batches_for_each_other_use_their_network():
    work = Workload(batch=1000, ideal_step_s=0.001, make_cpu_s=1e-6, sample_bytes=1_000_000)
    nobody = Group(0, 0, FAST)
    one, four = (predict(work, Group(count, 96, 1e9), nobody, "trainer", has_service=True) for count in (1, 4))
    assert one.limit == "the model's arithmetic"
    assert (four.limit, four.step_s) == ("network of dnn hosts", pytest.approx(0.75 / 4))
