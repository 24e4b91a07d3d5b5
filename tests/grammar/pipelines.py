"""A grammar of tf.data pipelines, drawn at random from sources and transformations as people write them.

An element is a tuple of numbers, a tuple of vectors (a batch), or a list of numbers. `rows` takes batches apart and
returns single elements. A pipeline is data (names and numbers), so that a failure can be read and repeated.
"""

import dataclasses
import functools

import numpy as np
import tensorflow as tf
from headrace.tensorflow import data

PADDING = -1
AUTOTUNE = tf.data.AUTOTUNE


@dataclasses.dataclass(frozen=True)
class Pipeline:
    source: str
    size: int
    steps: tuple  # (transformation, number)

    @property
    def names(self):
        return [self.source, *(name for name, _ in self.steps)]

    @property
    def draws_what_is_dropped(self):
        """Return whether a random order decides which elements are dropped with the last batch."""
        names = self.names
        last = max((place for place, name in enumerate(names) if name == DROPPING), default=0)
        return any("shuffle" in name or "any order" in name or name in DRAWN_SOURCES for name in names[:last])

    @property
    def keeping_the_rest(self):
        """Return this pipeline without `drop_remainder`. It stays where a later transformation depends on positions."""
        steps, looks = [], False
        for name, number in reversed(self.steps):
            looks |= name in BY_PLACE
            kept = name == DROPPING and not looks
            steps.append(("batch" if kept else name, number))
        return dataclasses.replace(self, steps=tuple(reversed(steps)))

    def build(self, files):
        dataset = SOURCES[self.source][0](self.size, files)
        for name, number in self.steps:
            dataset = TRANSFORMATIONS[name][2](dataset, number)
        return dataset


def rows(dataset):
    """Return all elements of a dataset, with batches taken apart and padding removed."""
    found = []
    for element in dataset.as_numpy_iterator():
        parts = element if isinstance(element, tuple) else (element,)
        if parts[0].ndim == 0:
            found.append(tuple(part.item() for part in parts))
        elif len(parts) == 1 and parts[0].dtype.name == "int32":  # lists of numbers
            several = parts[0].reshape(-1, parts[0].shape[-1])
            found += [tuple(number for number in row.tolist() if number != PADDING) for row in several]
        else:
            found += list(zip(*(part.tolist() for part in parts), strict=True))
    return found


def any_order():
    options = tf.data.Options()
    options.deterministic = False
    return options


def some_of_each(numbers):
    """Return a dataset of lists with different lengths, made from numbers."""
    return numbers.map(lambda x: tf.fill([x % 4 + 1], tf.cast(x, tf.int32)))


def table(size):
    return tf.range(size, dtype=tf.int64), 100 + tf.range(size, dtype=tf.int64) * 3


def as_numbers(lines):
    return lines.map(lambda line: tf.strings.to_number(line, tf.int64))


# ruff: noqa: E501
# name: (function that makes it from a size and a folder of files, kind of its elements)
SOURCES = {
    "range": (lambda size, _: tf.data.Dataset.range(size), "number"),
    "from_tensor_slices": (lambda size, _: tf.data.Dataset.from_tensor_slices(table(size)[1]), "number"),
    "from_tensor_slices of pairs": (lambda size, _: tf.data.Dataset.from_tensor_slices(table(size)), "pair"),
    "from_arrays": (lambda size, _: data.from_arrays(tuple(map(np.asarray, table(10 * size)))), "pair"),
    "from_tensors": (lambda size, _: tf.data.Dataset.from_tensors(tf.constant(7, tf.int64)), "number"),
    "from_list": (lambda size, _: tf.data.experimental.from_list(list(range(size + 1))).map(
        lambda n: tf.cast(n, tf.int64)), "number"),
    "TextLineDataset": (lambda _, files: as_numbers(tf.data.TextLineDataset([str(f) for f in files["text"]])), "number"),
    "TFRecordDataset": (lambda _, files: as_numbers(tf.data.TFRecordDataset([str(f) for f in files["records"]])),
                        "number"),
    "list_files and interleave": (lambda _, files: as_numbers(tf.data.Dataset.list_files(
        str(files["folder"] / "*.tfrecord")).interleave(tf.data.TFRecordDataset, num_parallel_calls=AUTOTUNE)), "number"),
    "list_files in order": (lambda _, files: as_numbers(tf.data.Dataset.list_files(
        str(files["folder"] / "*.txt"), shuffle=False).interleave(tf.data.TextLineDataset)), "number"),
    "CsvDataset": (lambda _, files: tf.data.experimental.CsvDataset([str(f) for f in files["text"]], [tf.int64]).map(
        lambda n: n), "number"),
    "zip of sources": (lambda size, _: tf.data.Dataset.zip((
        tf.data.Dataset.range(size), tf.data.Dataset.from_tensor_slices(table(size)[1]).map(lambda n: n + 1))), "pair"),
    "lists of different lengths": (lambda size, _: some_of_each(tf.data.Dataset.range(size)), "list"),
    "sample_from_datasets": (lambda size, _: tf.data.Dataset.sample_from_datasets(
        [tf.data.Dataset.range(size), tf.data.Dataset.range(1000, 1000 + size)]), "number"),
    "sample_from_datasets until one is empty": (lambda size, _: tf.data.Dataset.sample_from_datasets(
        [tf.data.Dataset.range(size), tf.data.Dataset.range(1000, 1000 + size)], seed=3, stop_on_empty_dataset=True),
        "number"),
    "choose_from_datasets": (lambda size, _: tf.data.Dataset.choose_from_datasets(
        [tf.data.Dataset.range(size), tf.data.Dataset.range(1000, 1000 + 2 * size)],
        tf.data.Dataset.from_tensor_slices(tf.constant([0, 1, 1], tf.int64)).repeat()), "number"),
}  # fmt: skip


DROPPING = "batch, dropping the rest"
BY_PLACE = ("take", "skip", "shard", "enumerate", "zip with a range", "zip with itself", "zip with what repeats",
            "repeat for ever, and take", "window", "scan", "unique", "take_while", "group_by_window",
            "rejection_resample")  # fmt: skip
"""Transformations that depend on the positions of elements. Their input is made as a whole, not in parts."""
DRAWN_SOURCES = ("list_files and interleave", "sample_from_datasets", "sample_from_datasets until one is empty")


def on_all(function):
    return lambda *parts: tuple(map(function, parts)) if len(parts) > 1 else function(parts[0])


def windows(dataset, number):
    return dataset.window(number + 1, shift=2).flat_map(lambda window: window.batch(3))


def by_remainder(dataset, number):
    return dataset.group_by_window(lambda n: n % 3, lambda _, window: window.batch(number + 1), number + 1)


def inner(n):
    return tf.data.Dataset.range(n % 4).map(lambda m: n * 10 + m)


def sparse(n):
    return tf.SparseTensor([[n % 4]], [n], [4])


# name: (kinds it takes, kind it makes, function). The kind made: None if unchanged, "s" if batched, "-s" if unbatched.
SINGLE, ANY = ("number", "pair"), ("number", "pair", "numbers", "pairs", "list", "lists")
TRANSFORMATIONS = {
    "map": (("number", "pair", "numbers", "pairs"), None, lambda d, k: d.map(on_all(lambda x: x + k))),
    "map, parallel": (("number", "pair", "numbers", "pairs"), None,
                      lambda d, k: d.map(on_all(lambda x: x * 2), num_parallel_calls=AUTOTUNE)),
    "map, in any order": (("number", "numbers"), None,
                          lambda d, k: d.map(lambda x: x - k, num_parallel_calls=3, deterministic=False)),
    "filter": (("number",), None, lambda d, k: d.filter(lambda x: x % (k + 2) > 0)),
    "take": (ANY, None, lambda d, k: d.take(3 * k)),
    "skip": (ANY, None, lambda d, k: d.skip(2 * k)),
    "shard": (ANY, None, lambda d, k: d.shard(k + 1, k // 2)),
    "enumerate": (("number",), "pair", lambda d, k: d.enumerate()),
    "zip with a range": (("number",), "pair", lambda d, k: tf.data.Dataset.zip((d, tf.data.Dataset.range(10, 1000)))),
    "zip with itself": (("number",), "pair", lambda d, k: tf.data.Dataset.zip((d, d.map(lambda x: x + 1)))),
    "zip with what repeats": (("number",), "pair", lambda d, k: tf.data.Dataset.zip(
        (d, tf.data.Dataset.range(k + 1).repeat()))),
    "shuffle": (ANY, None, lambda d, k: d.shuffle(k + 1)),
    "shuffle with a seed": (ANY, None, lambda d, k: d.shuffle(k + 1, seed=k + 1)),
    "shuffle once": (ANY, None, lambda d, k: d.shuffle(4 * k + 1, seed=k + 1, reshuffle_each_iteration=False)),
    "repeat": (ANY, None, lambda d, k: d.repeat(k % 3 + 1)),
    "repeat for ever, and take": (ANY, None, lambda d, k: d.repeat().take(5 * k)),
    "batch": (SINGLE, "s", lambda d, k: d.batch(k + 1)),
    "batch, parallel": (SINGLE, "s", lambda d, k: d.batch(k + 1, num_parallel_calls=2)),
    DROPPING: (SINGLE, "s", lambda d, k: d.batch(k + 1, drop_remainder=True)),
    "unbatch": (("numbers", "pairs"), "-s", lambda d, k: d.unbatch()),
    "rebatch": (("numbers", "pairs"), None, lambda d, k: d.rebatch(k + 1)),
    "lists": (("number",), "list", lambda d, k: some_of_each(d)),
    "padded_batch": (("list",), "s", lambda d, k: d.padded_batch(k + 1, padding_values=PADDING)),
    "bucket_by_sequence_length": (("list",), "s", lambda d, k: d.bucket_by_sequence_length(
        lambda e: tf.shape(e)[0], [2, 3], [k + 1] * 3, padding_values=PADDING)),
    "interleave": (("number",), None, lambda d, k: d.interleave(inner, cycle_length=k + 1)),
    "interleave, parallel": (("number",), None, lambda d, k: d.interleave(inner, num_parallel_calls=AUTOTUNE)),
    "flat_map": (("number",), None, lambda d, k: d.flat_map(inner)),
    "sparse, interleaved": (("number",), None, lambda d, k: d.map(sparse).interleave(
        tf.data.Dataset.from_tensors, cycle_length=k + 1).map(lambda x: x.values[0])),
    "concatenate": (ANY, None, lambda d, k: d.concatenate(d)),
    "cache": (ANY, None, lambda d, k: d.cache()),
    "prefetch": (ANY, None, lambda d, k: d.prefetch(k + 1)),
    "window": (("number",), "numbers", windows),
    "scan": (("number",), None, lambda d, k: d.scan(tf.constant(0, tf.int64), lambda s, x: (s + 1, s + x))),
    "unique": (("number",), None, lambda d, k: d.unique()),
    "take_while": (("number",), None, lambda d, k: d.take_while(lambda x: x < 20 * k)),
    "group_by_window": (("number",), "numbers", by_remainder),
    "rejection_resample": (("number",), "pair", lambda d, k: d.rejection_resample(
        lambda x: tf.cast(x % 2, tf.int32), [0.5, 0.5]).map(lambda c, x: (tf.cast(c, tf.int64), x))),
    "assert_cardinality": (ANY, None, lambda d, k: d.apply(tf.data.experimental.assert_cardinality(
        int(d.cardinality()))) if int(d.cardinality()) >= 0 else d),
    "with_options": (ANY, None, lambda d, k: d.with_options(tf.data.Options())),
    "with_options, in any order": (ANY, None, lambda d, k: d.with_options(any_order())),
    "ignore_errors": (ANY, None, lambda d, k: d.ignore_errors()),
}  # fmt: skip


def kind_after(name, kind):
    made = TRANSFORMATIONS[name][1]
    return kind if made is None else kind + "s" if made == "s" else kind[:-1] if made == "-s" else made


@functools.cache
def fitting(kind):
    return [name for name, (kinds, _, _) in TRANSFORMATIONS.items() if kind in kinds]


def pipeline_of(chance):
    """Draw a pipeline with a `random.Random`."""
    source = chance.choice(sorted(SOURCES))
    kind, steps = SOURCES[source][1], []
    for _ in range(chance.randint(1, 5)):
        name = chance.choice(fitting(kind))
        steps.append((name, chance.randint(0, 9)))
        kind = kind_after(name, kind)
    return Pipeline(source, chance.randint(1, 70), tuple(steps))
