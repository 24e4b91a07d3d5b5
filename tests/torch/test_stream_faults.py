"""If the maker of a shard dies or is silent, another maker continues the shard. If the rank leaves, its makers end."""

import collections
import itertools
import threading
import time

import psutil
import torch
from headrace.torch.feed import stream_client, worker
from headrace.training import socket_buffers
from torch.utils.data import IterableDataset

from tests.support import wait_for
from tests.torch.draws import Lines, all_lines, batches, lines_in, plain


def shard_processes(server):
    """Return the processes that the server's workers have forked."""
    return [each for process, _ in server._pool._workers.values() for each in psutil.Process(process.pid).children()]


def test_a_server_that_dies_or_is_silent_is_replaced_within_a_shard(feeds, monkeypatch):
    monkeypatch.setattr(stream_client, "PATIENCE_S", 1.0)
    addresses = [feeds.serve(1, Lines((40, 40)), 2) for _ in range(2)]
    options = {"shards": 2, "seed": 1}
    expected = batches(feeds.loader([], Lines((40, 40)), 2, **options))
    found = []
    for number, batch in enumerate(feeds.loader(addresses, Lines((40, 40)), 2, **options)):
        if number == 12:
            feeds.servers[0].close()
        found.append(plain(batch))
    assert found == expected


def test_coming_to_where_training_stopped_may_take_long(feeds, monkeypatch):
    monkeypatch.setattr(stream_client, "PATIENCE_S", 5.0)
    monkeypatch.setattr(worker, "ALIVE_EVERY_S", 0.1)
    slow = Lines((45,), slow=range(45))
    loader = feeds.with_server(True, slow, 5, seed=1, stall_timeout_s=6.0)
    loader.load_state_dict({"seed": 1, "epoch": 0, "position": 35, "shards": 1, "batch_size": 5, "taken": [7]})
    iterator = iter(loader)
    taken = [plain(next(iterator))]
    assert len(shard_processes(feeds.servers[0])) == 1  # no second process has taken over
    assert lines_in(taken + batches(iterator)) == all_lines((45,))[35:]


class Large(IterableDataset):
    def __iter__(self):
        for number in range(12):
            yield torch.full((8 << 20,), number, dtype=torch.uint8)


def test_a_rank_that_does_something_else_for_long_keeps_its_shards_makers(feeds, monkeypatch):
    monkeypatch.setattr(socket_buffers, "NOT_READ_MS", 5_000)
    numbers = (int(batch[0]) for batch in feeds.with_server(True, Large(), None))
    taken = [next(numbers), next(numbers)]
    made_by = [process.pid for process in shard_processes(feeds.servers[0])]
    time.sleep(8)  # the rank does other work meanwhile
    taken += itertools.islice(numbers, 8)
    assert [process.pid for process in shard_processes(feeds.servers[0])] == made_by
    assert taken + list(numbers) == list(range(12))


def test_nothing_is_left_running_when_an_iteration_is_broken_off(feeds):
    loader = feeds.with_server(True, Lines((90, 90)), 2, shards=2)
    for _ in zip(range(3), loader, strict=False):
        pass
    wait_for(lambda: not shard_processes(feeds.servers[0]), "the end of the shards' processes")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed shard")]
    assert collections.Counter(lines_in(batches(loader))).most_common(1)[0][1] == 1
