"""Batches from feed servers are those of local mode, to the last bit, whoever makes them and whoever is killed."""

import subprocess
import sys

import pytest
import torch
from headrace.errors import InputError
from headrace.torch.fetch.map_fetcher import SampleError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    get_worker_info,
)

from tests.support import ROOT
from tests.torch.draws import Draws, batches, indices, plain

LEAVES_AN_ITERATION_OPEN = """
import atexit, threading
atexit.register(lambda: print("at the end:", [each.name for each in threading.enumerate() if "feed" in each.name]))
import headrace.torch
from tests.torch.draws import Draws
batches = iter(headrace.torch.DataLoader(Draws(slow=(20,)), 4))
next(batches)
print("open:", [each.name for each in threading.enumerate() if "feed" in each.name])
"""


def test_servers_make_the_batches_of_local_mode_epoch_after_epoch(feeds):
    options = {"shuffle": True, "seed": 7}
    addresses = [feeds.serve(processes, Draws(), 4, **options) for processes in (0, 1, 3)]
    served = feeds.loader(addresses, Draws(), 4, **options)
    local = feeds.loader([], Draws(), 4, **options)
    workers = feeds.loader([], Draws(), 4, num_workers=2, persistent_workers=True, **options)
    for _ in range(3):
        expected = batches(local)
        assert batches(served) == expected
        assert batches(workers) == expected
    local.set_epoch(0)
    assert batches(local) != expected


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_servers_ranks_and_sizes_give_each_sample_once_in_the_promised_order_though_processes_are_killed(
    feeds, data
):
    size, batch = data.draw(st.integers(1, 60), "samples"), data.draw(st.integers(1, 9), "batch size")
    world, drop_last = data.draw(st.integers(1, 8), "ranks"), data.draw(st.booleans(), "drop_last")
    processes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4), "servers' processes")
    kill_at = data.draw(st.integers(0, 20), "killed after so many batches")
    options = {"shuffle": True, "drop_last": drop_last, "seed": data.draw(st.integers(0, 5))}
    addresses = [feeds.serve(number, Draws(size), batch, **options) for number in processes]
    started = feeds.servers[-len(addresses) :]
    by_rank = []
    try:
        for rank in range(world):
            loader = feeds.loader(addresses, Draws(size), batch, rank=rank, world=world, **options)
            taken = []
            for made in loader:
                taken.append(made["index"].tolist())
                if len(taken) == kill_at and rank == 0:
                    for server in started[:-1]:
                        server.close()
            assert len(taken) == len(loader)
            by_rank.append([index for each in taken for index in each])
        order = torch.randperm(size, generator=torch.Generator().manual_seed(options["seed"])).tolist()
        per_rank = size // world // batch * batch if drop_last else -(-size // world)
        for rank, found in enumerate(by_rank):
            assert found == [order[(rank + world * place) % size] for place in range(per_rank)]
    finally:
        for server in started:
            server.close()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_training_goes_on_at_any_step_on_any_number_of_ranks_and_each_sample_comes_once(feeds, data):
    size, batch = 53, data.draw(st.integers(1, 7), "batch size")
    world, other = data.draw(st.integers(1, 5), "ranks"), data.draw(st.integers(1, 5), "ranks after")
    steps = data.draw(st.integers(0, 12), "steps before")
    before, states = [], []
    for rank in range(world):
        loader = feeds.loader([], Draws(size), batch, shuffle=True, rank=rank, world=world)
        for step, made in enumerate(loader):
            before += made["index"].tolist()
            if step + 1 == steps:
                break
        states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    after = []
    for rank in range(other):
        loader = feeds.loader([], Draws(size), batch, shuffle=True, rank=rank, world=other)
        loader.load_state_dict(states[0])
        after += indices(loader)
    if states[0]["epoch"]:  # all of epoch 0 was trained on
        assert set(before) == set(after) == set(range(size))
    else:
        assert set(before) | set(after) == set(range(size)) and not set(before) & set(after)


def test_another_dataset_on_the_rank_is_refused(feeds):
    address = feeds.serve(1, Draws(53), 4)
    with pytest.raises(InputError, match=r"has another dataset on this rank .dataset.size, size: 53 and 54"):
        list(feeds.loader([address], Draws(54), 4))


def test_a_loader_that_servers_have_not_made_is_refused_with_what_to_do(feeds):
    address = feeds.serve(1, Draws(), 4)
    loader = feeds.loader([address], Draws(), 4)
    loader.number = 1
    with pytest.raises(InputError, match="make all loaders before that"):
        list(loader)


@pytest.mark.parametrize("remote", [True, False])
def test_iterations_over_one_loader_do_not_disturb_each_other(feeds, remote):
    addresses = [feeds.serve(1, Draws(), 4, shuffle=True)] if remote else []
    expected = batches(feeds.loader([], Draws(), 4, shuffle=True))
    loader, found = feeds.loader(addresses, Draws(), 4, shuffle=True), []
    for number, batch in enumerate(loader):
        found.append(plain(batch))
        if number == 3:
            next(iter(loader))
            loader.set_epoch(7)
    assert found == expected
    assert len(list(zip(loader, loader, strict=True))) == len(loader)


class Opened(Draws):
    def __getitem__(self, index):
        return {"file": self.file}


def _open_here(number):
    get_worker_info().dataset.file = number + 5


def _fails_here(number):
    raise OSError(f"no file for worker {number}")


@pytest.mark.parametrize("remote", [True, False])
def test_a_worker_init_fn_finds_the_dataset(feeds, remote):
    options = {"num_workers": 1, "worker_init_fn": _open_here}
    addresses = [feeds.serve(1, Opened(), 4, **options)] if remote else []
    found = list(feeds.loader(addresses, Opened(), 4, **options))
    assert {int(each) for batch in found for each in batch["file"]} == {5}


def test_a_worker_init_fn_that_fails_is_told(feeds):
    options = {"num_workers": 1, "worker_init_fn": _fails_here}
    address = feeds.serve(1, Draws(), 4, **options)
    with pytest.raises(SampleError, match="OSError: no file for worker 0"):
        list(feeds.loader([address], Draws(), 4, **options))


def test_datasets_of_two_sizes_draw_differently_unless_both_have_the_same_seed(feeds):
    for options, differ in (({}, True), ({"seed": 5}, False)):
        one, other = (
            {
                each
                for batch in feeds.loader([], Draws(size), 4, **options)
                for each in batch["torch"].flatten().tolist()
            }
            for size in (40, 44)
        )
        assert one.isdisjoint(other) == differ


def test_each_rank_can_take_all_samples(feeds):
    loader = feeds.loader([], Draws(), 8, rank=1, world=2, shard_by_rank=False)
    assert indices(loader) == list(range(53))


def test_local_batches_change_no_draws_of_the_script(feeds):
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    list(feeds.loader([], Draws(), 8))
    assert torch.rand(3).tolist() == expected


class Informed(Draws):
    def __getitem__(self, index):
        info = get_worker_info()
        return {"worker": info.id if info else -1, "of": info.num_workers if info else 0}


def test_a_dataset_is_told_its_worker_as_torch_does(feeds):
    address = feeds.serve(2, Informed(), 4)
    found = list(feeds.loader([address], Informed(), 4))
    assert {int(number) for batch in found for number in batch["worker"]} <= {0, 1}
    assert all(int(number) == 2 for batch in found for number in batch["of"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"batch_size": 0}, "positive"),
        ({"shuffle": 1, "sampler": [1]}, "mutually"),
    ],
)
def test_wrong_arguments_are_refused(feeds, arguments, message):
    with pytest.raises((InputError, ValueError), match=message):
        feeds.loader([], Draws(), **arguments)


def test_a_state_that_is_none_is_refused(feeds):
    loader = feeds.loader([], Draws(), 4)
    for state in ({}, {"seed": 1, "epoch": "x", "position": 0}, None):
        with pytest.raises(InputError, match="no state of a DataLoader"):
            loader.load_state_dict(state)


def test_what_a_script_leaves_open_has_ended_before_python_does(feeds):
    """A thread that is in torch when Python ends would abort the process."""
    address = feeds.serve(1, Draws(slow=(20,)), 4)
    feeds.loader([address], Draws(slow=(20,)), 4)  # which sets the rank's environment
    script = [sys.executable, "-c", LEAVES_AN_ITERATION_OPEN]
    ended = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert f"open: ['feed {address}'" in ended.stdout and "at the end: []" in ended.stdout, ended.stdout
