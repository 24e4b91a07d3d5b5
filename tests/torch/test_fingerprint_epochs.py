"""Between two epochs of a process: what the script has changed is seen, and what the dataset writes itself is none."""

import datetime
import functools
import multiprocessing

import numpy as np
import pandas
import pytest
import torch
from headrace.torch.changed import changes
from headrace.torch.fingerprint import fingerprint
from torch.utils.data import Dataset

from tests.torch.test_fingerprint import Table


class Cached(Dataset):
    def __init__(self):
        self.x, self.y, self.cache, self.calls = [1, 2], [3, 4], [None] * 2, 0
        self.root, self.transform, self.stage, self.kept = "/data/128px", None, 0, {1: 2}

    def set_epoch(self, epoch):
        self._begin(epoch)

    def _begin(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        self.calls += 1
        if self.cache[index] is None:
            self.cache[index] = self.read(index)
        return self.cache[index]

    def read(self, index):
        self.kept[index] = 1
        return self.x[index], self.y[index]


x, y = [1], [2]


@pytest.mark.parametrize("kind", ["Value", "Array", "dict", "list"])
def test_what_processes_share_is_seen_to_have_changed(kind):
    with multiprocessing.Manager() as manager:
        shared = {
            "Value": lambda: multiprocessing.Value("i", 1),
            "Array": lambda: multiprocessing.Array("i", [1, 2]),
            "dict": lambda: manager.dict({0: 1}),
            "list": lambda: manager.list([1, 2]),
        }[kind]()
        data = Table(shared)
        before = fingerprint(data, exact=True)
        assert changes(before, fingerprint(data, exact=True)) == []
        if kind == "Value":
            shared.value = 5
        else:
            shared[0] = 5
        assert changes(before, fingerprint(data, exact=True)) == ["columns"]


class Schedule:
    """Asked by a method, which counts."""

    def __init__(self):
        self.level, self.calls, self.optimizer_steps = 1, 0, 0

    def get(self):
        self.calls += 1
        return self.level


schedule = Schedule()


def of_a_closure(it):
    return lambda x: x * it.get()


def of_a_global(it):
    return lambda x: x * schedule.get()


@pytest.mark.parametrize("transform", [of_a_closure, of_a_global])
def test_what_a_function_asks_an_object_by_a_method_is_seen_to_have_changed(transform, monkeypatch):
    monkeypatch.setitem(globals(), "schedule", it := Schedule())
    data = Table(None)
    data.transform = transform(it)
    before = fingerprint(data, exact=True)
    it.calls, it.optimizer_steps = 5, 7
    assert changes(before, fingerprint(data, exact=True)) == []
    it.level = 9
    assert len(changes(before, fingerprint(data, exact=True))) == 1


def test_between_two_epochs_records_with_other_keys_than_texts_are_seen():
    records = [{datetime.date(2026, 1, 2): number} for number in range(5000)]
    before = fingerprint(Table(records), exact=True)
    records[0] = {datetime.date(2026, 1, 2): 7}
    assert fingerprint(Table(records), exact=True) != before


class Counted(Table):
    @functools.cached_property
    def count(self):
        return sum(self.columns)

    def __getitem__(self, index):
        return self.columns[index] / self.count


def test_what_a_cached_property_keeps_follows_from_the_rest():
    data = Counted([1, 2])
    for exact in (False, True):
        before = fingerprint(data, exact=exact)
        assert data.count == 3
        assert changes(before, fingerprint(data, exact=exact)) == []
        del data.count
    data.columns = [1, 3]
    assert changes(before, fingerprint(data, exact=True)) == ["columns"]


class Opaque:
    __module__ = "headrace_test_library"

    def __init__(self, p=0.5, transforms=()):
        self.p, self.transforms, self._calls = p, list(transforms), [0]

    def __call__(self, value):
        return value


def test_between_two_epochs_folders_count_and_what_the_dataset_itself_writes_does_not(monkeypatch):
    data = Cached()
    data.set_epoch(0)
    before = fingerprint(data, exact=True)
    data[1], data.set_epoch(1)
    monkeypatch.setitem(globals(), "x", [5])  # as `for x, y in loader` does; samples are made of self.x
    assert changes(before, fingerprint(data, exact=True)) == []
    data.root, data.transform, data.stage = "/data/256px", Opaque(), 1
    assert changes(before, fingerprint(data, exact=True)) == ["root", "stage", "transform"]


@pytest.mark.parametrize(
    ("transform", "change"),
    [
        (lambda: Opaque(), lambda it: setattr(it, "p", 0.1)),
        (lambda: Opaque(transforms=[Opaque(), Opaque()]), lambda it: setattr(it.transforms[1], "p", 0.1)),
        (lambda: Opaque(transforms=[Opaque(), Opaque()]), lambda it: it.transforms.pop()),
        (lambda: torch.nn.Sequential(torch.nn.Dropout(0.5)), lambda it: setattr(it[0], "p", 0.1)),
    ],
)
def test_between_two_epochs_a_librarys_transform_is_set_otherwise(transform, change):
    data = Cached()
    data.transform = transform()
    before = fingerprint(data, exact=True)
    if isinstance(data.transform, Opaque):
        data.transform._calls[0] += 1
    assert changes(before, fingerprint(data, exact=True)) == []
    change(data.transform)
    assert changes(before, fingerprint(data, exact=True)) == ["transform"]


@pytest.mark.parametrize(
    "first",
    [
        [[number % 9] * 12 for number in range(5000)],
        [dict.fromkeys("abcdef", number) for number in range(5000)],
        [np.full(5000, 0.5) for _ in range(150)],
    ],
    ids=["lists of tokens", "records", "arrays"],
)
def test_what_comes_after_an_attribute_that_holds_much_counts_too(first):
    for exact in (False, True):
        one, other = Table(None), Table(None)
        one.labels, other.labels = [0] * 50, [0] * 49 + [1]
        one.annotations = other.annotations = first
        one.boxes, other.boxes = first, list(first)
        assert changes(fingerprint(one, exact=exact), fingerprint(other, exact=exact)) == ["labels"]


def test_between_two_epochs_any_entry_of_a_large_dict_counts():
    labels = {f"{number}.jpg": 0 for number in range(20_000)}
    before = fingerprint(Table(labels), exact=True)
    labels["9999.jpg"] = 1
    assert fingerprint(Table(labels), exact=True) != before


@pytest.mark.parametrize(
    "kind", [np.array, torch.tensor, list, lambda labels: pandas.DataFrame({"label": labels, "name": "x"}),
             lambda labels: np.array(labels, object),
             lambda labels: [{"file": "x.jpg", "label": each, "box": [0, 0, 4, 4]} for each in labels]],
)  # fmt: skip
def test_between_two_epochs_one_label_of_many_is_seen_to_have_changed(kind):
    labels = [0] * 200_000
    before = fingerprint(Table(kind(labels)), exact=True)
    assert fingerprint(Table(kind(list(labels))), exact=True) == before
    labels[123_457] = 1
    assert fingerprint(Table(kind(labels)), exact=True) != before
