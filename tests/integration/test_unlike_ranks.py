"""Ranks that train differently get a warning, and harmless differences cause none."""

import re

from tests.integration.test_horovod import mpirun


def test_ranks_that_average_no_gradients_or_whose_models_differ_are_warned_of_once(tmp_path):
    result = mpirun("unlike.py", tmp_path, "averages_no_gradients", "begins_apart", "has_other_rates")
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("no gradients were averaged by headrace") == 1, result.stdout[-4000:]
    norms = re.findall(r"warning: after epoch 1 the norm of the weights is 1\.\d+ on rank 0 and ", result.stdout)
    assert len(norms) == 1
    assert result.stdout.count("warning: after epoch 1 the learning rate is 0.005 on rank 1 and 0.01 on rank 0") == 1
    assert result.stdout.count("warning: after ") == 2


def test_looks_and_evaluations_that_harm_nothing_are_let_be(tmp_path):
    result = mpirun("unlike.py", tmp_path, "looks_and_evaluates", "evaluates_held_out_data")
    assert result.returncode == 0, result.stdout[-4000:]
    assert result.stdout.count("all promises kept") == 2
    assert not [line for line in result.stdout.splitlines() if "warning:" in line and "training pass" not in line]
