"""Each rank takes its share of a host's GPUs and processors. A stand-in for tf.config lists the devices."""

import os
from types import SimpleNamespace

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow.ranks import devices


class Config:
    """A stand-in for tf.config on a host with GPUs. If `begun`, TensorFlow is initialized: nothing can be changed."""

    def __init__(self, gpus, visible=None, begun=False, threads=0):
        self.gpus = [f"GPU:{n}" for n in range(gpus)]
        self.visible, self.begun = self.gpus if visible is None else visible, begun
        self.growing, self.threads = [], threads
        self.experimental = SimpleNamespace(set_memory_growth=self.set_memory_growth)
        self.threading = SimpleNamespace(
            get_intra_op_parallelism_threads=lambda: self.threads, set_intra_op_parallelism_threads=self.set_threads
        )

    def change(self):
        if self.begun:
            raise RuntimeError("cannot be modified after being initialized")

    def set_threads(self, threads):
        self.change()
        self.threads = threads

    def list_physical_devices(self, kind):
        return self.gpus

    def get_visible_devices(self, kind):
        return self.visible

    def set_visible_devices(self, device, kind):
        self.change()
        self.visible = [device]

    def set_memory_growth(self, device, grows):
        self.change()
        self.growing.append(device)


@pytest.fixture
def host(monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def begin(**how):
        config = Config(**how)
        monkeypatch.setattr(tf, "config", config)
        return config

    return begin


def test_each_rank_takes_the_gpu_of_its_number_with_memory_that_grows_and_its_share_of_the_processors(host):
    config = host(gpus=8)
    devices.take_share(3, 8)
    assert (config.visible, config.growing, config.threads) == (["GPU:3"], ["GPU:3"], 2)


def test_a_rank_alone_has_all_processors(host):
    config = host(gpus=1)
    devices.take_share(0, 1)
    assert (config.visible, config.growing, config.threads) == (["GPU:0"], ["GPU:0"], 0)


@pytest.mark.parametrize("chosen", [["GPU:5"], []])
def test_what_the_script_has_chosen_stays(host, chosen):
    config = host(gpus=8, visible=chosen, threads=5)
    devices.take_share(3, 8)
    assert (config.visible, config.growing, config.threads) == (chosen, [], 5)


def test_more_ranks_than_gpus_are_refused_with_the_flag_that_says_how_many(host):
    host(gpus=1)
    with pytest.raises(InputError, match=r"^2 ranks on this host, but only 1 GPUs: give --processes_per_host 1"):
        devices.take_share(0, 2)


def test_a_gpu_that_the_environment_gives_this_rank_stays(host, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6")
    config = host(gpus=1)
    devices.take_share(6, 8)
    assert config.visible == ["GPU:0"]


def test_a_tensorflow_that_has_begun_is_left_alone_with_one_line(host, capsys):
    config = host(gpus=2, begun=True)
    devices.take_share(1, 2)
    assert (config.visible, config.threads) == (["GPU:0", "GPU:1"], 0)
    assert capsys.readouterr().out.count("call hvd.init() before the first tensor") == 1


def test_threads_that_the_environment_says_stay(host, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "4")
    config = host(gpus=0)
    devices.take_share(0, 2)
    assert config.threads == 0
