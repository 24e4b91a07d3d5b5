"""What datasets, samplers and loaders of people's own do, with feed servers and in local mode."""

import dataclasses
import gc
import random
import signal
import sqlite3
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


def test_a_dataset_with_threads_is_served_by_one_process_which_has_them(feeds, capsys):
    class Loader:
        num_workers = 0

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


class OfShard(Numbers):
    def __getitem__(self, index):
        return self.shard * 100 + index


def test_a_loader_made_later_of_another_dataset_is_not_served_as_one_of_before_but_made_here(feeds, capsys):
    address = feeds.serve(1, OfShard(20, shard=0), 4)
    first = feeds.loader([address], OfShard(20, shard=0), 4)
    assert all_of(first) == list(range(20))
    later = type(first)(OfShard(20, shard=1), 4)
    assert first.made_elsewhere and not later.made_elsewhere
    assert all_of(later) == list(range(100, 120))
    assert "loader 2 of the script was made after the first batch" in capsys.readouterr().out


def test_a_loader_made_anew_after_its_dataset_has_changed_is_refused_too(feeds):
    address = feeds.serve(1, OfShard(20, shard=0, root="/data/a"), 4)
    data = OfShard(20, shard=0, root="/data/a")
    first = feeds.loader([address], data, 4)
    assert all_of(first) == all_of(type(first)(data, 4)) == list(range(20))
    data.root = "/data/b"  # on another host it may be called so
    with pytest.raises(InputError, match=r"has changed since the first batch \(root\)"):
        all_of(type(first)(data, 4))


class Collating(Numbers):
    def collate(self, samples):
        return torch.tensor(samples)


@dataclasses.dataclass
class Collator:
    pad: int = 0

    def __call__(self, samples):
        return torch.tensor(samples) + self.pad


@pytest.mark.parametrize("collate_of", [lambda data: data.collate, lambda _: Collator()])
def test_a_loader_made_anew_for_each_epoch_may_have_its_collate_function_made_anew_too(feeds, collate_of):
    address = feeds.serve(1, Collating(20), 4, collate_fn=collate_of(Collating(20)))
    data = Collating(20)
    loader = feeds.loader([address], data, 4, collate_fn=collate_of(data))
    for _ in range(3):
        assert all_of(loader) == list(range(20)) and loader.made_elsewhere
        loader = type(loader)(data, 4, collate_fn=collate_of(data))


class Moving(Numbers):
    """Is told epochs, and keeps what it has made."""

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        self.cache[index] = index
        return index


@dataclasses.dataclass
class Weighted:
    weights: torch.Tensor

    def __call__(self, samples):
        return torch.tensor(samples)


@BOTH
def test_loaders_made_anew_go_on_in_another_order_though_the_dataset_has_moved_on(feeds, remote):
    collate_fn = Weighted(torch.ones(3))
    made = {"shuffle": True, "collate_fn": collate_fn}
    addresses = [feeds.serve(1, Moving(20, epoch=0, cache={}), 4, **made)] if remote else []
    data, orders = Moving(20, epoch=0, cache={}), set()
    loader = feeds.loader(addresses, data, 4, **made)
    for epoch in range(3):
        data.set_epoch(epoch)
        orders.add(tuple(all_of(loader)))
        assert loader.made_elsewhere == remote
        assert data[3] == 3  # a look at a sample
        loader = type(loader)(data, 4, **made)
    assert len(orders) == 3
    other = type(loader)(data, 4, shuffle=True, collate_fn=Weighted(torch.zeros(3)))  # compares as it likes
    assert sorted(all_of(other)) == list(range(20))


def test_loaders_made_late_of_two_datasets_draw_differently(feeds):
    first = feeds.loader([], Numbers(20), 4, shuffle=True)
    all_of(first)
    late = [type(first)(Numbers(40, kind=kind), 4, shuffle=True) for kind in "ab"]
    assert all_of(late[0]) != all_of(late[1])


def test_what_servers_had_of_a_loader_that_was_thrown_away_is_not_taken_for_what_there_is_now(feeds):
    address = feeds.serve(1, Numbers(20), 4)
    data, others = OfShard(20, shard=0, root="/a"), Numbers(20)
    feeds.loader([address], data, 4)
    loader = feeds.loader([address], others, 4)
    loader.set_epoch(0)
    gc.collect()
    all_of(loader)
    assert not type(loader)(data, 4).made_elsewhere


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
    assert all_of(loader) == random.Random(10).sample(range(20), 20), "without set_epoch, the next one"


@BOTH
def test_a_loader_that_is_made_anew_for_each_epoch_goes_on_in_another_order(feeds, remote):
    addresses = [feeds.serve(1, Numbers(20), 4, shuffle=True)] if remote else []

    def orders():
        data = Numbers(20)
        one = feeds.loader(addresses, data, 4, shuffle=True)
        # As a second one of the same process, which the fixture would take for another rank's.
        begun = all_of(one)
        return begun, all_of(type(one)(data, 4, shuffle=True))

    first, second = orders()
    assert first != second and sorted(first) == sorted(second)
    assert orders() == (first, second), "and always the same"


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
