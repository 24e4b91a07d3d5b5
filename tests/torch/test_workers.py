"""Processes that make samples, of feed servers and of ranks: what datasets do in them, and that they end."""

import gc
import multiprocessing
import os
import signal
import sqlite3
import tarfile
import tempfile

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from tests.support import wait_for
from tests.torch.draws import BOTH, Draws, Numbers, all_of, batches
from tests.torch.lines import Lines


class InOneFile(Numbers):
    def __getitem__(self, index):
        member = self.archive.getmembers()[index]
        return int(self.archive.extractfile(member).read())


class InATemporaryFile(Numbers):
    def __getitem__(self, index):
        self.file.seek(index * 4)
        return int.from_bytes(self.file.read(4), "little")


def of_an_archive(folder):
    path = folder / "numbers.tar"
    if not path.exists():
        with tarfile.open(path, "w") as archive:
            for number in range(100):
                (folder / "number").write_text(f"{number:>3000}")
                archive.add(folder / "number", f"{number:03}")
    return InOneFile(100, archive=tarfile.open(path))


def of_a_temporary_file(folder):
    file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(b"".join(number.to_bytes(4, "little") for number in range(100)))
    file.flush()
    return InATemporaryFile(100, file=file)


@BOTH
@pytest.mark.parametrize("data", [of_an_archive, of_a_temporary_file])
def test_each_process_reads_from_its_own_place_in_an_open_file(feeds, tmp_path, data, remote):
    addresses = [feeds.serve(3, data(tmp_path), 4)] if remote else []
    assert all_of(feeds.loader(addresses, data(tmp_path), 4, num_workers=3)) == list(range(100))


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
    addresses = [feeds.serve(2, data, 2)] if remote else []
    assert all_of(feeds.loader(addresses, data, 2, num_workers=2)) == list(range(20))


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


class OfProcesses(Numbers):
    def __getitem__(self, index):
        return os.getpid()


def test_local_workers_stay_for_all_epochs(feeds):
    loader = feeds.loader([], OfProcesses(40), 2, num_workers=2)
    assert set(all_of(loader)) == set(all_of(loader)) and os.getpid() not in all_of(loader)


def test_a_second_iteration_beside_the_first_has_workers_of_its_own(feeds):
    expected = batches(feeds.loader([], Draws(), 4, shuffle=True))
    loader = feeds.loader([], Draws(), 4, shuffle=True, num_workers=1, persistent_workers=True)
    look = iter(loader)
    next(look)
    assert len(list(loader)) == len(expected)
    look.close()
    assert len(list(loader)) == len(expected)


def test_the_workers_of_a_loader_that_is_gone_end_without_a_garbage_collection(feeds):
    """A collection may happen on any thread, and torch joins its workers there."""
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
