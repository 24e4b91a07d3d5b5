"""Ranks that do not do the same are told so before they train on the wrong data, or with unequal models."""

import pytest

from tests.integration.test_horovod import mpirun


@pytest.mark.parametrize(
    "unlike, said",
    [
        ("begins", "rank 1's weights are not rank 0's"),
        ("second model", "rank 1's weights are not rank 0's"),
        ("rate", "rank 1's learning rate is 0.005, and rank 0's is 0.01"),
    ],
)
def test_ranks_whose_models_differ_are_warned_of_once(unlike, said, tmp_path):
    result = mpirun("unlike.py", tmp_path, unlike)
    assert result.returncode == 0, result.stdout[-4000:]
    assert said in result.stdout
    assert result.stdout.count("warning: at ") == 1


@pytest.mark.parametrize(
    "unlike, said",
    [
        ("no broadcast", "at the end of epoch 1, rank 1's weights are not rank 0's"),
        ("no averages", "no gradients were averaged by headrace"),
        ("no averages, loop", "no gradients were averaged by headrace"),
        ("held out, averaging", "evaluated 1 batch of 'held_out' twice"),
    ],
)
def test_what_no_callback_of_headraces_was_given_for_is_told_nevertheless(unlike, said, tmp_path):
    result = mpirun("unlike.py", tmp_path, unlike)
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count(f"{said}") == 1, result.stdout[-4000:]
    assert len([line for line in result.stdout.splitlines() if "warning:" in line and "that trains" not in line]) == 1


def test_ranks_without_a_stream_in_common_that_make_unequal_numbers_of_steps_are_told_after_an_epoch(tmp_path):
    result = mpirun("unlike.py", tmp_path, "unequal")
    assert result.returncode != 0  # the one that ends first ends the other
    warning = "warning: at the end of epoch 1, rank 1 had made 12 steps, and rank 0 10, but each step waits"
    assert warning in result.stdout, result.stdout[-4000:]
    assert result.stdout.count("warning: at ") == 1


@pytest.mark.parametrize("loop, step", [("loop, short", 6), ("loop", 10), ("loop, endless", 10)])
def test_a_loop_of_ones_own_on_unequal_models_is_warned_of_once(loop, step, tmp_path):
    result = mpirun("unlike.py", tmp_path, loop)
    assert result.returncode == 0, result.stdout[-4000:]
    assert f"warning: at step {step}, rank 1's weights are not rank 0's" in result.stdout
    assert result.stdout.count("warning:") == 1


@pytest.mark.parametrize("unlike", ["harmless", "held out", "loop, broadcast", "loop, endless, broadcast"])
def test_looks_and_evaluations_that_harm_nothing_are_let_be(unlike, tmp_path):
    result = mpirun("unlike.py", tmp_path, unlike)
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 2
    assert not [line for line in result.stdout.splitlines() if "warning:" in line and "that trains" not in line]
