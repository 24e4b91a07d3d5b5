"""Batches from feed servers equal those of local mode to the last bit, even if servers and workers are killed."""

import itertools
import multiprocessing
import subprocess
import sys

import pytest
import torch
from headrace.errors import InputError
from headrace.torch.feed import scheduler
from headrace.torch.fetch.map_fetcher import SampleError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import get_worker_info

from tests.support import ROOT, wait_for
from tests.torch.draws import Draws, Lines, Numbers, all_of, batches, indices, plain

LEAVES_AN_ITERATION_OPEN = """
import atexit, sys, threading, time, traceback
def receiving():
    stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
    def is_in_receive(call):
        return call.name == "receive" and call.filename.endswith("feed/client.py")
    return sum(any(map(is_in_receive, stack)) for stack in stacks)
atexit.register(lambda: print("receiving at the end:", receiving()))
import headrace.torch
from tests.torch.draws import Draws
loader = headrace.torch.DataLoader(Draws(endless=(4,)), 4)
batches = iter(loader)
next(batches)
while not receiving():  # the test has a limit
    time.sleep(0.01)
print("open:", sorted({each.name for each in threading.enumerate() if "feed" in each.name}))
"""


def test_servers_make_the_batches_of_local_mode_epoch_after_epoch(feeds):
    options = {"shuffle": True, "seed": 7}
    addresses = [feeds.serve(processes, Draws(), 4, **options) for processes in (1, 3)]
    served = feeds.loader(addresses, Draws(), 4, **options)
    local = feeds.loader([], Draws(), 4, **options)
    workers = feeds.loader([], Draws(), 4, num_workers=2, persistent_workers=True, **options)
    for _ in range(3):
        expected = batches(local)
        assert batches(served) == expected
        assert batches(workers) == expected
    local.set_epoch(0)
    assert batches(local) != expected


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_servers_ranks_and_sizes_give_each_sample_once_in_the_promised_order_though_processes_are_killed(
    feeds, data
):
    size, batch = data.draw(st.integers(1, 60), "samples"), data.draw(st.integers(1, 9), "batch size")
    world, drop_last = data.draw(st.integers(1, 6), "ranks"), data.draw(st.booleans(), "drop_last")
    processes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3), "servers' processes")
    kill_at = data.draw(st.integers(0, 20), "batches before a kill")
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
def test_training_goes_on_at_any_step_on_any_number_of_ranks_and_what_repeats_is_the_epochs_beginning(feeds, data):
    size, batch = 53, data.draw(st.integers(1, 7), "batch size")
    world, other = data.draw(st.integers(1, 5), "ranks"), data.draw(st.integers(1, 5), "ranks after")
    steps = data.draw(st.integers(0, 12), "steps before")
    epoch, start = divmod(min(steps * batch * world, size), size)
    state = {"seed": 0, "epoch": epoch, "position": start}
    for rank in range(world):
        loader = feeds.loader([], Draws(size), batch, shuffle=True, rank=rank, world=world)
        list(itertools.islice(loader, steps))
        assert loader.state_dict() == state
    order = torch.randperm(size, generator=torch.Generator().manual_seed(epoch)).tolist()
    for rank in range(other):
        loader = feeds.loader([], Draws(size), batch, shuffle=True, rank=rank, world=other)
        loader.load_state_dict(state)
        per_rank = -(-(size - start) // other)
        assert indices(loader) == [order[(start + rank + other * place) % size] for place in range(per_rank)]


def test_another_dataset_on_the_rank_is_refused(feeds):
    address = feeds.serve(1, Draws(53), 4)
    with pytest.raises(InputError, match=r"loader 0 differs between .*: length is 53 here and 54 on the rank"):
        list(feeds.loader([address], Draws(54), 4))


@pytest.mark.parametrize("where", ["feed servers", "local", "workers"])
def test_iterations_over_one_loader_do_not_disturb_each_other(feeds, where):
    expected = batches(feeds.loader([], Draws(), 4, shuffle=True))
    workers = {"num_workers": 1, "persistent_workers": True} if where == "workers" else {}
    loader, found = feeds.with_server(where == "feed servers", Draws(), 4, shuffle=True, **workers), []
    for number, batch in enumerate(loader):
        found.append(plain(batch))
        if number == 3:
            next(iter(loader))
            loader.set_epoch(7)
    assert found == expected
    assert len(list(zip(loader, loader, strict=True))) == len(loader)


class Counted(Numbers):
    """A dataset that counts the samples made by all processes."""

    def __init__(self, size=200, bytes_each=8):
        super().__init__(size, made=multiprocessing.Value("i", 0), bytes_each=bytes_each)

    def __getitem__(self, index):
        with self.made.get_lock():
            self.made.value += 1
        return torch.full((self.bytes_each,), index, dtype=torch.uint8)


def test_an_epoch_begins_without_a_new_connection(feeds, monkeypatch):
    address = feeds.serve(2, Numbers(40), 4)
    pool, entered = feeds.servers[0]._pool, []
    hand_over = pool.hand_over
    monkeypatch.setattr(pool, "hand_over", lambda *given: (entered.append(given), hand_over(*given)))
    loader = feeds.loader([address], Numbers(40), 4)
    all_of(loader)
    wait_for(lambda: len(entered) == 4, "two connections for each worker")
    for _ in range(5):
        assert all_of(loader) == list(range(40))
    assert len(entered) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_batches_are_asked_for_before_the_first_next(feeds, stream):
    made = multiprocessing.Value("i", 0)

    class CountedLines(Lines):
        def __iter__(self):
            for each in super().__iter__():
                made.value += 1
                yield each

    data = CountedLines() if stream else Counted()
    counter = made if stream else data.made
    begun = iter(feeds.with_server(True, data, 4))
    wait_for(lambda: counter.value >= 4, "a batch that nobody has asked for yet")
    begun.close()


def test_so_many_batches_are_made_ahead_as_prefetch_factor_says(feeds):
    for factor in (1, 6):
        data = Counted()
        taken = iter(feeds.with_server(True, data, 1, prefetch_factor=factor, num_workers=1))
        next(taken)
        ahead = 1 + factor + 2  # the taken batch, prefetch_factor of the one worker, EXTRA_AHEAD
        wait_for(lambda data=data, ahead=ahead: data.made.value == ahead, f"{ahead} batches")
        next(taken)
        wait_for(lambda data=data, ahead=ahead: data.made.value == ahead + 1, "one more for each that is taken")
        taken.close()


def test_batches_that_a_rank_holds_fit_into_prefetch_bytes(feeds):
    for limit, most in ((1, scheduler.LEAST_AHEAD), (6 << 20, 6)):
        data = Counted(60, 1 << 20)
        loader = feeds.with_server(True, data, 1, prefetch_bytes=limit, prefetch_factor=16, num_workers=1)
        ahead = []
        for taken, _ in enumerate(loader, 1):
            ahead.append(data.made.value - taken)
            if taken == 20:
                wait_for(lambda data=data, most=most: data.made.value == 20 + most, f"{most} batches ahead")
        assert max(ahead[20:40]) <= most + 1  # a tolerance of one batch


def _fails_here(number):
    raise OSError(f"no file for worker {number}")


def test_a_worker_init_fn_that_fails_is_named(feeds):
    with pytest.raises(SampleError, match="OSError: no file for worker 0"):
        list(feeds.with_server(True, Draws(), 4, num_workers=1, worker_init_fn=_fails_here))


class Informed(Numbers):
    def __getitem__(self, index):
        info = get_worker_info()
        return info.id, info.num_workers, info.seed


def test_a_dataset_knows_its_worker_whose_seed_is_the_same_in_each_run(feeds):
    def workers():
        loader = feeds.with_server(True, Informed(), 1, processes=2)
        found = set()
        while {number for number, _ in found} != {0, 1}:  # one worker may make all batches of an epoch
            found |= {(int(number), int(seed)) for batch in loader for number, _, seed in zip(*batch, strict=True)}
        return found

    found = workers() | workers()
    assert {number for number, _ in found} == {0, 1} and len(found) == 2
    assert {int(each) for batch in feeds.with_server(True, Informed(), 1, processes=2) for each in batch[1]} == {2}


def test_what_a_script_leaves_open_has_ended_before_python_does(feeds):
    """If a thread were still inside torch when Python exits, the process would abort."""
    address = feeds.serve(1, Draws(endless=(4,)), 4)
    feeds.loader([address], Draws(endless=(4,)), 4)  # sets the environment for the script
    script = [sys.executable, "-c", LEAVES_AN_ITERATION_OPEN]
    ended = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert f"open: ['feed {address}']" in ended.stdout, ended.stdout
    assert "receiving at the end: 0" in ended.stdout, ended.stdout
