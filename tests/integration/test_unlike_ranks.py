"""Ranks that do not do the same are told so before they train on the wrong data, or with unequal models."""

import pytest

from tests.integration.test_horovod import mpirun


@pytest.mark.parametrize(
    "unlike, said",
    [
        ("begins", "warning: after epoch 1 rank 0's weights have the norm 1."),
        ("rate", "warning: after epoch 1 rank 1's learning rate is 0.005, and rank 0's 0.01"),
    ],
)
def test_ranks_whose_models_differ_are_warned_of_once(unlike, said, tmp_path):
    result = mpirun("unlike.py", tmp_path, unlike)
    assert result.returncode == 0, result.stdout[-4000:]
    assert said in result.stdout
    assert result.stdout.count("warning: after ") == 1


def test_a_fit_that_averages_no_gradients_is_warned_of_once(tmp_path):
    result = mpirun("unlike.py", tmp_path, "no averages")
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("no gradients were averaged by headrace") == 1, result.stdout[-4000:]


@pytest.mark.parametrize("unlike", ["harmless", "held out"])
def test_looks_and_evaluations_that_harm_nothing_are_let_be(unlike, tmp_path):
    result = mpirun("unlike.py", tmp_path, unlike)
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 2
    assert not [line for line in result.stdout.splitlines() if "warning:" in line and "that trains" not in line]
