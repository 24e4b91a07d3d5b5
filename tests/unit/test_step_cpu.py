"""The CPU time of a step leaves out waiting and evaluations, and short ideal steps are measured more often."""

import time

import pytest
from headrace.training import step_cpu
from headrace.training.ideal_step import LEAST_STEPS, MOST_STEPS, IdealStep, steps_to_measure
from headrace.training.step_cpu import StepCpu


@pytest.fixture
def burn(monkeypatch):
    """Function that pretends to use CPU time: it advances a fake clock, which nothing else advances."""
    spent = [0.0]
    monkeypatch.setattr(step_cpu, "_now", lambda: (spent[0], spent[0]))
    return lambda seconds: spent.append(spent.pop() + seconds)


def test_the_clock_of_cpu_time_counts_this_process():
    (_, began_s), end = step_cpu._now(), time.process_time() + 0.02
    while time.process_time() < end:
        pass
    assert step_cpu._now()[1] - began_s >= 0.02


def test_cpu_time_of_steps_leaves_out_what_lies_between_epochs(burn):
    cpu = StepCpu()
    for _ in range(2):
        cpu.made(1)
        for _ in range(3):
            burn(0.01)
            cpu.made(1)
        cpu.over()
        burn(0.2)  # an evaluation
    assert cpu.per_step_s() == cpu.outside_waiting_s() == pytest.approx(0.01)


def test_cpu_time_of_waiting_is_not_the_models(burn):
    cpu = StepCpu()
    cpu.made(1)
    for _ in range(4):
        burn(0.02)
        cpu.made(1, waited_s=0.015)
    assert cpu.per_step_s() == pytest.approx(0.02)
    assert cpu.outside_waiting_s() == pytest.approx(0.005)


def test_short_steps_are_measured_more_often():
    assert steps_to_measure(10.0) == LEAST_STEPS
    assert steps_to_measure(0.1) == 10
    assert steps_to_measure(1e-9) == MOST_STEPS


def test_the_error_of_the_ideal_step_is_that_of_a_median():
    steady, noisy = IdealStep.of([0.1] * 10, 1.0), IdealStep.of([0.1, 0.12, 0.08, 0.11, 0.09] * 2, 1.0)
    assert steady.ms == noisy.ms == 100.0
    assert steady.error_ms == 0.0 and 2 < noisy.error_ms < 10
    assert steady.cpu_s == 0.1
