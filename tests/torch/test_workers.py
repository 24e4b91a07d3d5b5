"""Worker processes of feed servers and of ranks: datasets work in them, and a rank's workers end with their loader."""

import gc
import multiprocessing
import signal
import sqlite3
import tempfile

import numpy as np
import torch
from torch.utils.data import get_worker_info

from tests.support import wait_for
from tests.torch.draws import BOTH, Draws, Lines, Numbers, all_of


class InATemporaryFile(Numbers):
    def __getitem__(self, index):
        self.file.seek(index * 4)
        return int.from_bytes(self.file.read(4), "little")


def of_a_temporary_file():
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(b"".join(number.to_bytes(4, "little") for number in range(100)))
    file.flush()
    return InATemporaryFile(100, file=file)


@BOTH
def test_each_process_reads_from_its_own_place_in_an_open_file(feeds, remote):
    assert all_of(feeds.with_server(remote, of_a_temporary_file(), 4, num_workers=3, processes=3)) == list(range(100))


class OfTheMainThread(Numbers):
    database = None

    def __getitem__(self, index):
        if self.database is None:
            self.database = sqlite3.connect(self.path)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return self.database.execute("select ?", [index]).fetchone()[0]


@BOTH
def test_samples_are_made_by_the_main_thread_of_a_process(feeds, tmp_path, remote):
    data = OfTheMainThread(20, path=tmp_path / "one")
    assert all_of(feeds.with_server(remote, data, 2, num_workers=2, processes=2)) == list(range(20))


class Drawing(Numbers):
    def __getitem__(self, index):
        return float(self.rng.random())


def seeded_by_worker(number):
    info = get_worker_info()
    assert info.seed == torch.initial_seed()
    info.dataset.rng = np.random.default_rng(torch.initial_seed())


@BOTH
def test_generators_that_worker_init_fn_seeds_draw_other_numbers_everywhere_and_in_each_epoch(feeds, remote):
    options = {"num_workers": 2, "worker_init_fn": seeded_by_worker}
    addresses = [feeds.serve(2, Drawing(40), 2, **options) for _ in range(2)] if remote else []
    drawn = []
    for rank in (0, 1):
        loader = feeds.loader(addresses, Drawing(40), 2, rank=rank, world=2, **options)
        drawn += all_of(loader) + all_of(loader)
    assert len(set(drawn)) == len(drawn) == 80


def test_the_workers_of_a_loader_that_is_gone_end_without_a_garbage_collection(feeds):
    """Garbage collection may run on any thread. If it ended a loader, that thread would wait for the workers to end."""
    gc.collect()
    before = set(multiprocessing.active_children())
    gc.disable()
    try:
        for data in (Draws(), Lines()):
            loader = feeds.loader([], data, 4, num_workers=2)
            list(loader)
            assert set(multiprocessing.active_children()) - before
            del loader
            wait_for(lambda: not set(multiprocessing.active_children()) - before, "the workers' end")
    finally:
        gc.enable()
