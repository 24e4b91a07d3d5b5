"""Shards of files, indices and listings yield each element once an epoch, also after a restart."""

import json

import pytest
import tensorflow as tf
from headrace.errors import InputError
from headrace.tensorflow import data
from headrace.tensorflow.sharding.sources import count_records
from headrace.training.ledger import PLACE_BITS

COUNTS = [40, 25, 60, 31]


class Saved:
    """A stand-in for a checkpoint. The stand-in holds only the ledger."""

    def __init__(self, state=None):
        self.state = state

    def keep_stream(self, stream):
        return self.state


@pytest.fixture
def files(tmp_path):
    paths = []
    for unit, count in enumerate(COUNTS):
        paths.append(tmp_path / f"{unit}.tfrecord")
        with tf.io.TFRecordWriter(str(paths[-1])) as writer:
            for record in range(count):
                writer.write(f"{unit}:{record}")
    return paths


@pytest.fixture
def served(servers, use):
    use(servers(2).address)


def batches_of(shards, name, batch=8):
    stream = shards.tagged().shuffle(16, seed=1).batch(batch, drop_remainder=True)
    tagged = data.distribute(stream, job_name=name)
    # The tags are also a component here, unlike in users' scripts, so that the trainer sees them.
    return tagged.map(lambda tags, elements: shards.noted(tags, (tags, elements)))


def train(shards, name, steps):
    """Make some steps, and return the tags of the batches trained on, but not of batches that were only prefetched."""
    seen = []
    for step, (tags, _) in enumerate(batches_of(shards, name).take(steps + 3).prefetch(3)):
        if step == steps:
            break
        seen += tags.numpy().tolist()
        shards.consumed(1)
    shards.gather()
    return seen


def test_a_stream_of_shards_is_described_as_a_dataset_is_and_no_function_sees_a_tag(files):
    shards = data.Shards.of_files(files, Saved())
    stream = shards.map(lambda record: (record, tf.strings.length(record))).shuffle(16, seed=1).batch(4)
    stream = data.distribute(stream.map(lambda records, lengths: (records, -lengths)))
    seen = []
    for records, lengths in stream.take(3 * sum(COUNTS) // 4):
        assert lengths.numpy().tolist() == [-len(each) for each in records.numpy()]
        seen += records.numpy().tolist()
        shards.consumed(1)
    shards.gather()
    assert set(seen) == {f"{unit}:{record}".encode() for unit, count in enumerate(COUNTS) for record in range(count)}
    assert shards.ledger.mark >= len(COUNTS), "the ledger has not seen that an epoch is over"


def test_records_are_counted_by_their_lengths_and_other_files_are_refused(files, tmp_path):
    assert [count_records(path) for path in files] == COUNTS
    files[0].write_bytes(files[0].read_bytes()[:-3])
    (tmp_path / "text").write_text("not records at all, but a few words")
    for path in (files[0], tmp_path / "text"):
        with pytest.raises(InputError, match="not an uncompressed TFRecord file, or is cut off at byte"):
            count_records(path)
    with pytest.raises(InputError, match="there are no files"):
        data.Shards.of_files([])


@pytest.mark.parametrize("steps", [1, 13, 30, 47])
def test_after_restarts_the_stream_goes_on_with_no_element_twice_and_none_skipped(files, served, monkeypatch, steps):
    seen, state = [], None
    for run in range(3):
        shards = data.Shards.of_files(files, Saved(state), seed=5)
        seen += train(shards, f"{steps}-{run}", steps)
        state = json.loads(json.dumps(shards.state()))
    # Read the rest of the begun epochs in this process.
    monkeypatch.setenv("HEADRACE_TF_DATA_MODE", "local")
    shards = data.Shards.of_files(files, Saved(state), seed=5)
    epochs = 1 + max(seen, default=0) // (len(COUNTS) << PLACE_BITS)
    end = epochs * len(COUNTS) << PLACE_BITS
    seen += [int(tag) for tag, _ in shards.tagged(cycle_length=1).take_while(lambda tag, _: tag < end)]
    assert len(seen) == len(set(seen)), "an element came twice"
    assert len(seen) == epochs * sum(COUNTS), "an element was skipped"


def pairs_of_files():
    """Return a dataset of paths and labels, as a script lists them. The first 30 are held out."""
    paths = tf.data.Dataset.from_tensor_slices([f"{number}.jpg" for number in range(200)])
    labels = tf.data.Dataset.range(200).map(lambda number: number * 7)
    return tf.data.Dataset.zip({"path": paths, "label": labels}).skip(30)


def test_any_listing_goes_on_after_restarts_with_its_elements_whole(served, monkeypatch):
    seen, state = [], None
    for run, steps in enumerate((3, 11)):
        shards = data.Shards.of_dataset(pairs_of_files(), Saved(state), seed=5, block=16)
        assert shards.elements == 170
        seen += train(shards, f"listing-{run}", steps)
        state = json.loads(json.dumps(shards.state()))
    monkeypatch.setenv("HEADRACE_TF_DATA_MODE", "local")
    shards = data.Shards.of_dataset(pairs_of_files(), Saved(state), seed=5, block=16)
    blocks = 11
    epochs = 1 + max(seen) // (blocks << PLACE_BITS)
    end = epochs * blocks << PLACE_BITS
    rest = list(shards.tagged(cycle_length=1).take_while(lambda tag, _: tag < end).as_numpy_iterator())
    assert len(seen) + len(rest) == len({*seen, *(int(tag) for tag, _ in rest)}) == epochs * 170
    for _, element in rest:
        assert element["path"].decode() == f"{element['label'] // 7}.jpg"
        assert element["label"] >= 30 * 7


def test_lines_of_files_are_read_few_times_an_epoch(tmp_path):
    (tmp_path / "table.csv").write_text("".join(f"{number}\n" for number in range(2000)))
    shards = data.Shards.of_dataset(tf.data.TextLineDataset(str(tmp_path / "table.csv")), block=1)
    epoch = list(shards.tagged(cycle_length=1).take(2000).as_numpy_iterator())
    assert sorted(int(line) for _, line in epoch) == list(range(2000))
    assert len({tag >> PLACE_BITS for tag, _ in epoch}) <= 32


@pytest.mark.parametrize(
    ("listing", "fix"),
    [
        (lambda: tf.data.Dataset.range(9).shuffle(9), "shuffle after this operation"),
        (lambda: tf.data.Dataset.range(9).repeat(), r"repeat\(\) later, after this"),
        (lambda: tf.data.Dataset.range(0), "0 elements"),
    ],
    ids=["shuffled", "endless", "empty"],
)
def test_what_cannot_be_listed_is_refused_with_the_fix(listing, fix):
    with pytest.raises(InputError, match=fix) as refused:
        data.Shards.of_dataset(listing())
    assert "exact=False" not in str(refused.value)


def test_every_epoch_has_every_index_once_in_an_order_of_its_own(monkeypatch):
    monkeypatch.delenv("HEADRACE_TF_DATA_MODE", raising=False)
    shards = data.Shards.of_indices(100, block=7, seed=2)
    assert shards.elements == 100
    stream = [int(index) for _, index in shards.tagged(cycle_length=1).take(300)]
    epochs = [stream[first : first + 100] for first in (0, 100, 200)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_ledger_of_other_data_is_not_used(capfd):
    first = data.Shards.of_indices(100, Saved())
    for block in first.tagged().batch(10).take(3):
        first.ledger.add(block[0].numpy())
    other = data.Shards.of_indices(90, Saved(first.state()))
    assert (other.ledger.mark, other.ledger.begun_elements) == (0, 0)
    other.report()
    assert "event=data_restarted" in capfd.readouterr().out
