"""Ranks that read a dataset themselves get together what plain tf.data gives, of what people list and parse too."""

import tensorflow as tf
from headrace.tensorflow import data, world


def parts_of(dataset, monkeypatch, ranks=2):
    """What ranks that read a dataset themselves get together."""
    monkeypatch.setattr(world, "size", lambda: ranks)
    monkeypatch.setattr(world, "of_all_ranks", lambda value, *_: [value])
    got = []
    for rank in range(ranks):
        monkeypatch.setattr(world, "rank", lambda rank=rank: rank)
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
