"""Ranks that do not do the same are told so before they train on the wrong data, or with unequal models."""

import pytest

from tests.integration.test_horovod import mpirun


@pytest.mark.parametrize("looks", ["looks at an end: 0", "looks: 1"])
def test_a_batch_that_one_rank_alone_takes_of_a_shared_stream_ends_the_job_with_that_cause(looks, tmp_path):
    result = mpirun("unlike.py", tmp_path, looks)
    one, other = looks[-1], 1 - int(looks[-1])
    assert result.returncode != 0
    assert f"rank {one} trains with pass 2 over 'train', rank {other} with 1" in result.stdout, result.stdout[-4000:]
    assert "all promises kept" not in result.stdout


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
