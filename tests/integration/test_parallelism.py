"""With AUTOTUNE, parallelism is the rank's share of the host's processors, or TensorFlow's value if that is larger."""

import os

import pytest
import tensorflow as tf
from headrace.tensorflow import data


@pytest.mark.parametrize(("processors", "ranks", "calls"), [(96, "1", 96), (96, "2", 48), (96, "8", 16), (4, "", 16)])
def test_an_autotuned_stage_may_use_the_ranks_share_of_the_hosts_processors(monkeypatch, processors, ranks, calls):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(processors))
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", ranks)
    mapped = tf.data.Dataset.range(8).map(lambda n: n + 1, tf.data.AUTOTUNE).batch(2)
    for read in (data.distribute(mapped), data.split_by_rank(mapped)):
        autotune = read.options().autotune
        assert (autotune.enabled, autotune.initial_parallelism) == (False, calls)  # fixed, as autotuning is off


def test_a_parallelism_that_the_script_gives_stays():
    options = tf.data.Options()
    options.autotune.initial_parallelism = 3
    read = data.split_by_rank(tf.data.Dataset.range(8).with_options(options).batch(2))
    assert read.options().autotune.initial_parallelism == 3
