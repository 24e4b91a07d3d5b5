"""What datasets, samplers and loaders of people's own do, with feed servers and in local mode."""

import argparse
import http.client
import http.server
import multiprocessing
import random
import signal
import socket
import sqlite3
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from headrace.errors import InputError
from headrace.torch.forking import processes_for
from torch.utils.data import Dataset, Sampler, Subset, get_worker_info

BOTH = pytest.mark.parametrize("remote", [True, False], ids=["feed servers", "local"])


class Numbers(Dataset):
    """Whatever it is given, it says of each sample."""

    def __init__(self, size=200, **attributes):
        self.size = size
        vars(self).update(attributes)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


def all_of(loader):
    return [each for batch in loader for each in (batch.tolist() if isinstance(batch, torch.Tensor) else batch)]


class InOneFile(Numbers):
    def __getitem__(self, index):
        member = self.archive.getmembers()[index]
        return int(self.archive.extractfile(member).read())


def test_processes_that_make_batches_do_not_move_each_others_place_in_an_open_file(feeds, tmp_path):
    with tarfile.open(tmp_path / "numbers.tar", "w") as archive:
        for number in range(200):
            (tmp_path / "number").write_text(f"{number:>3000}")
            archive.add(tmp_path / "number", f"{number:03}")

    def data():
        return InOneFile(archive=tarfile.open(tmp_path / "numbers.tar"))

    address = feeds.serve(3, data(), 4)
    assert all_of(feeds.loader([address], data(), 4)) == list(range(200))


class OfTheMainThread(Numbers):
    def __init__(self, path):
        super().__init__(20)
        self.path, self.database = path, None

    def __getitem__(self, index):
        if self.database is None:
            self.database = sqlite3.connect(self.path)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return self.database.execute("select ?", [index]).fetchone()[0]


def test_samples_are_made_by_the_main_thread_of_a_process(feeds, tmp_path):
    address = feeds.serve(2, OfTheMainThread(tmp_path / "one"), 2)
    assert all_of(feeds.loader([address], OfTheMainThread(tmp_path / "one"), 2)) == list(range(20))


class WithThreads(Numbers):
    def __init__(self):
        super().__init__(20)
        self.pool = ThreadPoolExecutor(2)
        self.pool.submit(int).result()

    def __getitem__(self, index):
        return self.pool.submit(lambda: index).result(5)


class Connected(Numbers):
    def __init__(self, connection):
        super().__init__(20)
        self.connection = connection


def test_a_dataset_that_talks_to_a_process_is_served_by_one_process():
    with subprocess.Popen(["true"]) as process, socket.socket() as connection:
        for each in (process, connection, *multiprocessing.Pipe(), *multiprocessing.Pipe(duplex=False)):
            loader = argparse.Namespace(num_workers=0, dataset=Connected(each), collate_fn=None)
            assert processes_for([loader], 1) == 0
            loader.num_workers = 2  # as torch has it
            assert processes_for([loader], 1) == 2


@pytest.mark.parametrize("hold", [lambda client: client, lambda client: {"pools": [client]}])
def test_a_librarys_connection_that_was_used_is_not_shared_by_processes(hold):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        client = http.client.HTTPConnection(*server.server_address)
        loader = argparse.Namespace(num_workers=0, dataset=Connected(hold(client)), collate_fn=None)
        assert processes_for([loader], 1) > 0
        client.connect()
        assert processes_for([loader], 1) == 0
        client.close()
        assert processes_for([loader], 1) > 0


def test_a_look_for_connections_leaves_nothing_open(tmp_path):
    with (tmp_path / "numbers").open("w") as file:
        loader = argparse.Namespace(num_workers=0, dataset=Connected([file] * 5), collate_fn=None)
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert processes_for([loader], 1) > 0
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_dataset_with_threads_is_served_by_one_process_which_has_them(feeds, capsys):
    class Loader:
        num_workers, collate_fn = 0, None

    for data, wanted in ((WithThreads(), 0), (Subset(WithThreads(), [1]), 0), (Numbers(), 4)):
        loader = Loader()
        loader.dataset = data
        assert (processes_for([loader], 1) == 0) == (wanted == 0)
    assert "the dataset has threads" in capsys.readouterr().err
    address = feeds.serve(0, WithThreads(), 2)
    assert all_of(feeds.loader([address], WithThreads(), 2)) == list(range(20))


class Drawing(Numbers):
    def __getitem__(self, index):
        return float(self.rng.random())


def seeded_by_worker(number):
    info = get_worker_info()
    assert info.seed == torch.initial_seed()
    info.dataset.rng = np.random.default_rng(torch.initial_seed())


@BOTH
def test_generators_that_worker_init_fn_seeds_draw_other_numbers_everywhere_and_each_epoch(feeds, remote):
    options = {"num_workers": 2, "worker_init_fn": seeded_by_worker}
    addresses = [feeds.serve(2, Drawing(40), 2, **options) for _ in range(2)] if remote else []
    drawn = []
    for rank in (0, 1):
        loader = feeds.loader(addresses, Drawing(40), 2, rank=rank, world=2, **options)
        drawn += all_of(loader) + all_of(loader)
    assert len(set(drawn)) == len(drawn) == 80


class Staged(Numbers):
    def __getitem__(self, index):
        return self.stage

    def set_epoch(self, epoch):
        self.stage = epoch


@BOTH
def test_a_datasets_set_epoch_is_called_wherever_samples_are_made(feeds, remote):
    addresses = [feeds.serve(2, Staged(20, stage=0), 4)] if remote else []
    loader = feeds.loader(addresses, Staged(20, stage=0), 4)
    assert [set(all_of(loader)) for _ in range(3)] == [{0}, {1}, {2}]


def test_each_loader_of_a_dataset_has_it_told_its_own_epoch_and_views_of_it_too(feeds):
    data = Staged(20, stage=0)
    train = feeds.loader([], Subset(data, range(20)), 4)
    other = type(train)(Subset(data, range(8)), 4)
    train.set_epoch(3)
    stages = []
    for number, batch in enumerate(train):
        stages += batch.tolist()
        if number == 1:
            assert set(all_of(other)) == {0}
    assert set(stages) == {3}


class Kept(Numbers):
    def __getitem__(self, index):
        self.file.seek(index * 4)
        return int.from_bytes(self.file.read(4), "little")


def test_a_temporary_file_is_read_by_each_process_from_its_own_place(feeds):
    def data():
        file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(b"".join(number.to_bytes(4, "little") for number in range(200)))
        file.flush()
        return Kept(file=file)

    address = feeds.serve(3, data(), 4)
    assert all_of(feeds.loader([address], data(), 4)) == list(range(200))


class Turning(Sampler):
    """Another order in each epoch that the script sets."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 20

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(range(20), 20))


def test_a_samplers_own_epoch_counts_where_the_script_sets_it(feeds):
    sampler = Turning()
    loader = feeds.loader([], Numbers(20), 4, sampler=sampler)
    for epoch in (5, 6, 9):
        sampler.set_epoch(epoch)
        assert all_of(loader) == random.Random(epoch).sample(range(20), 20)
        assert loader.epoch == epoch
    assert all_of(loader) == random.Random(9).sample(range(20), 20), "until the script says something else"


def test_a_look_at_the_first_batch_changes_no_order(feeds):
    plain = all_of(feeds.loader([], Numbers(20), 4, shuffle=True))
    looked_at = feeds.loader([], Numbers(20), 4, shuffle=True)
    next(iter(looked_at))
    assert all_of(type(looked_at)(Numbers(20), 4, shuffle=True)) == plain


def test_a_list_of_files_in_another_order_is_refused_wherever_the_folder_is(feeds):
    def files(folder, names):
        return Numbers(3, files=[Path(folder) / name for name in names])

    address = feeds.serve(1, files("/data/there", "abc"), 1)
    assert all_of(feeds.loader([address], files("/elsewhere", "abc"), 1)) == [0, 1, 2]
    with pytest.raises(InputError, match=r"has another dataset on this rank \(dataset.files\)"):
        list(feeds.loader([address], files("/data/there", "acb"), 1))
