"""Tables and settings of libraries that people's datasets hold: other rows are seen, another host's folder is not."""

import json
import os

import datasets
import pandas
import polars
import pyarrow
import pytest
from headrace.torch.changed import changes
from headrace.torch.fingerprint import fingerprint
from omegaconf import OmegaConf
from torch.utils.data import Dataset

ROWS = 5_000
ONE = {"text": [f"word {number}" for number in range(ROWS)], "label": list(range(ROWS))}
OTHER = {**ONE, "label": [*range(1, ROWS), 0]}
KINDS = {
    "pandas": pandas.DataFrame,
    "a series": lambda rows: pandas.Series(rows["label"]),
    "polars": polars.DataFrame,
    "a series of polars": lambda rows: polars.Series(rows["label"]),
    "pyarrow": pyarrow.table,
    "an array of pyarrow": lambda rows: pyarrow.array(rows["label"]),
    "Hugging Face": datasets.Dataset.from_dict,
}


class Held(Dataset):
    def __init__(self, held):
        self.held = held


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_tables_with_other_rows_are_told_apart_and_equal_ones_are_not(made):
    assert fingerprint(Held(made(ONE))) == fingerprint(Held(made(ONE)))
    assert fingerprint(Held(made(ONE))) != fingerprint(Held(made(OTHER)))
    assert fingerprint(Held(made(ONE)), exact=True) != fingerprint(Held(made(OTHER)), exact=True)


def test_tables_with_columns_of_other_names_are_told_apart():
    renamed = dict(zip(["text", "class"], ONE.values(), strict=True))
    for made in (pandas.DataFrame, polars.DataFrame, pyarrow.table):
        assert fingerprint(Held(made(ONE))) != fingerprint(Held(made(renamed)))


def test_a_large_table_of_arrow_is_not_read_whole():
    pictures = pyarrow.table({"image": [b"x" * 100_000] * 2_000})
    read = []

    class Counted:
        __module__ = "pyarrow.lib"
        nbytes, column_names = pictures.nbytes, ["image"]

        def __len__(self):
            return len(pictures)

        def slice(self, place, count):
            read.append(place)
            return pictures.slice(place, count)

    fingerprint(Held(Counted()))
    assert 16 <= len(read) <= 100


@pytest.mark.parametrize("wrapped", [lambda data: data, Held], ids=["itself", "in a dataset of the script's"])
@pytest.mark.parametrize("shuffled", [lambda data: data.shuffle(), lambda data: data.train_test_split(0.1)["train"]])
def test_a_shuffle_or_split_without_a_seed_makes_another_dataset_of_hugging_faces(wrapped, shuffled):
    data = datasets.Dataset.from_dict(ONE)
    assert fingerprint(wrapped(shuffled(data))) != fingerprint(wrapped(shuffled(data)))


def test_files_that_each_host_has_written_itself_are_the_same_dataset_of_hugging_faces(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    seen = []
    for host in ("one", "other"):
        file = tmp_path / host / "rows.jsonl"
        file.parent.mkdir()
        file.write_text("".join(json.dumps({"x": number}) + "\n" for number in range(50)))
        os.utime(file, (len(seen), len(seen)))  # as written on its host
        data = datasets.load_dataset("json", data_files=str(file), split="train")
        seen.append([fingerprint(each) for each in (data, data.map(lambda row: {"y": row["x"] + 1}), Held(data))])
    assert seen[0] == seen[1]


class Sized:
    __slots__ = ("__secret", "size")

    def __init__(self, size):
        self.size, self.__secret = size, size


class Sizing(Dataset):
    def __init__(self, settings):
        self.settings = settings

    def __getitem__(self, index):
        return index * self.settings.size * self.settings.crops[0]


class Slotted(Dataset):
    __slots__ = ("files",)

    def __init__(self, files):
        self.files = files


def test_datasets_with_slots_and_tables_with_another_index_are_told_apart():
    assert fingerprint(Slotted(["a"])) != fingerprint(Slotted(["b"]))
    rows = pandas.DataFrame({"a": [1, 2]})
    assert fingerprint(Held(rows)) != fingerprint(Held(rows.set_index(pandas.Index([5, 6]))))


def test_settings_in_slots_or_of_omegaconf_count():
    data = Sizing(Sized(3))
    before = fingerprint(data, exact=True)
    data.settings.size = 4
    assert changes(before, fingerprint(data, exact=True)) == ["settings"]

    data = Sizing(
        OmegaConf.create(
            {"size": 3, "crops": [1, 2], "lr": 0.1, "gpus": "${oc.env:NO_SUCH_VARIABLE}", "to_be_given": "???"}
        )
    )
    before = fingerprint(data, exact=True)
    data.settings.lr = 0.2
    assert changes(before, fingerprint(data, exact=True)) == []
    data.settings.crops[0] = 2
    assert changes(before, fingerprint(data, exact=True)) == ["settings.crops"]


def test_a_table_of_another_class_in_a_module_called_datasets_is_the_scripts_own():
    class Own:
        __module__ = "__main__"

        def __init__(self, rows):
            self.table, self.rows = pandas.DataFrame({"a": [1]}), rows

    assert fingerprint(Held(Own([1]))) != fingerprint(Held(Own([2])))
