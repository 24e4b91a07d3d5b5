"""Datasets of files, parsed records or random numbers are split. All parts together are what plain tf.data yields."""

import functools

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.ranks import collectives
from headrace.tensorflow.sharding.rank_shares import dealt

from tests.integration.service import consumers

Dataset = tf.data.Dataset


def parts_of(dataset, monkeypatch, ranks=2):
    """Return the elements of all ranks when each reads its part of a dataset itself."""
    monkeypatch.setattr(collectives, "size", lambda: ranks)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    got = []
    for rank in range(ranks):
        monkeypatch.setattr(collectives, "rank", lambda rank=rank: rank)
        got += [row for batch in data.split_by_rank(dataset) for row in batch["x"].numpy().tolist()]
    return sorted(got)


def test_one_file_is_shared_by_ranks_though_those_who_list_it_shuffle_what_they_list(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text("x\n" + "".join(f"{number}\n" for number in range(40)))
    rows = tf.data.experimental.make_csv_dataset(str(tmp_path / "rows.csv"), 4, num_epochs=1)
    assert parts_of(rows, monkeypatch) == list(range(40))


def test_examples_that_are_parsed_in_batches_are_shared(tmp_path, monkeypatch):
    with tf.io.TFRecordWriter(str(tmp_path / "rows")) as writer:
        for number in range(40):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            writer.write(tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString())
    rows = tf.data.experimental.make_batched_features_dataset(
        str(tmp_path / "rows"), 4, {"x": tf.io.FixedLenFeature([], tf.int64)}, num_epochs=1
    )
    assert parts_of(rows, monkeypatch) == list(range(40))


DRAWN_WITH_A_SEED = [
    Dataset.zip({"x": Dataset.range(40), "drawn": Dataset.random(seed=4)}),
    Dataset.sample_from_datasets([Dataset.range(40), Dataset.range(40, 90)], seed=3, stop_on_empty_dataset=True).map(
        lambda number: {"x": number, "drawn": number}
    ),
]


@pytest.mark.parametrize("drawn", DRAWN_WITH_A_SEED, ids=["numbers", "which dataset comes next"])
def test_what_is_drawn_with_a_seed_stays_with_its_element(drawn, use, servers, monkeypatch):
    pairs = sorted((int(each["x"]), int(each["drawn"])) for each in drawn)
    use(servers(2).address)
    (stream,) = consumers(1, drawn.batch(4))
    got = [pair for batch in stream for pair in zip(batch["x"].numpy(), batch["drawn"].numpy(), strict=True)]
    assert sorted((int(x), int(drawn)) for x, drawn in got) == pairs
    assert parts_of(drawn.batch(4), monkeypatch) == [x for x, _ in pairs]


@pytest.mark.parametrize(
    ("drawn", "advice"),
    [
        (Dataset.zip((Dataset.range(9), Dataset.random())), r"Dataset.random\(seed=…\)"),
        (Dataset.random(seed=3, rerandomize_each_iteration=True).take(9), r"Dataset.random\(seed=…\)"),
        (Dataset.random(seed=3, rerandomize_each_iteration=True), "every worker would draw the same"),
        (Dataset.range(9).rejection_resample(lambda n: tf.cast(n % 2, tf.int32), [0.5, 0.5]), "uses only the element"),
    ],
)
def test_what_is_drawn_anew_each_time_is_refused_with_what_to_draw_instead(drawn, advice, monkeypatch):
    monkeypatch.setattr(collectives, "size", lambda: 2)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    with pytest.raises(InputError, match=advice):
        data.split_by_rank(drawn.batch(4))


@pytest.mark.parametrize("ranks", [2, 3])
def test_records_of_interleaved_classes_are_dealt_so_that_each_rank_has_all_of_them(ranks):
    def of_class(number):
        return tf.data.Dataset.range(200).map(lambda index: (index * 2 + number, number))

    records = tf.data.Dataset.range(2).interleave(of_class, cycle_length=2)
    parts = [list(dealt(records, ranks, rank).as_numpy_iterator()) for rank in range(ranks)]
    assert sorted(index for part in parts for index, _ in part) == list(range(400))
    for part in parts:
        assert abs(len(part) - 400 / ranks) <= 1
        assert all(3 < sum(kind for _, kind in part[at : at + 16]) < 13 for at in range(0, len(part) - 16, 16))


def records(folder):
    """Write two hundred records to eight files, and return a dataset that lists the files."""
    for file in range(8):
        with tf.io.TFRecordWriter(str(folder / f"{file}.tfrecord")) as writer:
            for number in range(25):
                writer.write(str(25 * file + number))
    return Dataset.list_files(str(folder / "*.tfrecord"))


DROPPING = {
    "interleave": lambda files: files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    .map(lambda record: {"x": tf.strings.to_number(record, tf.int64)}).shuffle(40).batch(16, drop_remainder=True),
    "filter": lambda _: Dataset.range(201).filter(lambda n: n < 200).map(lambda n: {"x": n}).batch(
        16, drop_remainder=True),
    "rebatch": lambda _: Dataset.range(200).batch(10).rebatch(16, True).map(lambda n: {"x": n}),
    "group_by_window": lambda _: Dataset.range(200).group_by_window(
        lambda n: n % 2, lambda _, group: group.batch(16, drop_remainder=True), 16).map(lambda n: {"x": n}),
}  # fmt: skip


@pytest.mark.parametrize("name", DROPPING)
def test_of_what_drops_its_last_batch_each_worker_or_rank_leaves_out_less_than_one_and_it_is_told(
    name, tmp_path, use, servers, monkeypatch, capsys
):
    dataset = DROPPING[name](records(tmp_path))
    use(servers(2).address)
    streams = consumers(1, dataset)
    by_workers = sorted(row for each in streams for batch in each for row in batch["x"].numpy().tolist())
    assert capsys.readouterr().out.count("drop_remainder leaves out the incomplete last batch") == 1
    for got in (by_workers, parts_of(dataset, monkeypatch)):
        assert len(got) == len(set(got)) and set(got) <= set(range(200))
        assert len(got) % 16 == 0 and 200 - len(got) < 16 * 2 * (1 + (name == "group_by_window"))
    assert capsys.readouterr().out.count("drop_remainder leaves out the incomplete last batch") == 1


NAMES = tf.constant([f"/opt/ml/input/data/training/{number:08}.jpg" for number in range(5_000)])
LARGE = {"names": NAMES, "ragged rows": tf.RaggedTensor.from_uniform_row_length(NAMES, 1)}


@pytest.mark.parametrize("name", LARGE)
def test_many_names_or_ragged_rows_are_shared_by_workers_and_by_ranks(name, use, servers, monkeypatch):
    rows = Dataset.from_tensor_slices((LARGE[name], tf.range(5_000))).shuffle(5_000)
    dataset = rows.map(lambda row, number: {"x": tf.where(tf.size(row) > 0, number, -1)}).batch(32)
    use(servers(2).address)
    (stream,) = consumers(1, dataset)
    by_workers = sorted(row for batch in stream for row in batch["x"].numpy().tolist())
    assert by_workers == parts_of(dataset, monkeypatch) == list(range(5_000))


def oversampled():
    """Return a dataset in which every other element comes three times in a row."""
    return Dataset.range(40).flat_map(lambda number: Dataset.from_tensors(number).repeat(1 + 2 * (number % 2)))


@pytest.mark.parametrize(
    ("many", "elements"),
    [
        (lambda: [Dataset.from_tensors(tf.constant(number, tf.int64)) for number in range(20)], 20),
        (lambda: [Dataset.range(3 * number, 3 * number + 3) for number in range(20)], 60),
        (lambda: [oversampled()], 80),
    ],
    ids=["of one element", "of three", "with a pattern"],
)
@pytest.mark.parametrize("batched", [False, True])
def test_many_short_listings_and_patterns_are_dealt_evenly(many, elements, batched, monkeypatch):
    monkeypatch.setattr(collectives, "size", lambda: 2)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    first, *others = many()
    joined = functools.reduce(Dataset.concatenate, others, first)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(collectives, "rank", lambda rank=rank: rank)
        part = data.split_by_rank(joined.batch(4) if batched else joined)
        parts.append([int(each) for each in (part.unbatch() if batched else part)])
    assert sorted(parts[0] + parts[1]) == sorted(int(each) for each in joined)
    assert abs(len(parts[0]) - len(parts[1])) <= max(4, elements // 10)
    assert all(0.2 < sum(each % 2 for each in part) / len(part) < 0.9 for part in parts)


@pytest.mark.parametrize(
    "dataset",
    [Dataset.range(48).batch(8).take(1).cache().repeat(), Dataset.range(8).repeat().batch(8)],
    ids=["a batch", "a few elements"],
)
def test_what_would_leave_a_rank_without_an_element_for_ever_is_refused_with_the_fix(dataset, monkeypatch):
    with pytest.raises(InputError, match=r"1 parts for 2 ranks.*shared=False"):
        parts_of(dataset, monkeypatch)


def cached(reads):
    """Return a cached dataset of 40 elements in batches of 4. It appends to `reads` for each element it makes."""

    def made(row):
        reads.append(1)
        return row

    rows = Dataset.range(40).map(lambda row: tf.numpy_function(made, [row], tf.int64))
    return rows.map(lambda row: {"x": tf.ensure_shape(row, [])}).batch(4).cache()


def seen(dataset):
    return [row for batch in dataset for row in batch["x"].numpy().tolist()]


@pytest.mark.parametrize("after", [lambda each: each, lambda each: each.prefetch(2), lambda each: each.shuffle(9)])
def test_a_cache_is_a_ranks_own_and_not_that_of_the_scripts_dataset(after, monkeypatch):
    """Each rank reads a part of the dataset. The script can still read all of it, to adapt layers or to evaluate."""
    monkeypatch.setattr(collectives, "size", lambda: 2)
    monkeypatch.setattr(collectives, "of_all_ranks", lambda value, *_: [value])
    whole, filled = cached([]), cached(reads := [])
    assert seen(filled) == list(range(40)) and len(reads) == 40
    for rank in (0, 1):
        monkeypatch.setattr(collectives, "rank", lambda rank=rank: rank)
        parts = [data.split_by_rank(after(each)) for each in (whole, filled)]
        for _ in range(2):
            assert [len(seen(part)) for part in parts] == [20, 20]
    assert len(reads) == 80  # the second pass of each rank's part comes from its cache
    assert seen(whole) == seen(filled) == list(range(40))
