"""Each rule of `headrace lint` reports its fault, and is silent once the fault is fixed."""

import pytest
import tensorflow as tf
from headrace.lint.examine import examine
from headrace.lint.script_run import Captured

from tests.integration.lint_pipelines import (
    AUTO,
    JPEG,
    center_crop,
    channels,
    crop,
    crop_beside_whole,
    decode_and_blow_up,
    decode_only_crop,
    decode_to_uint8,
    files,
    images,
    jpegs,
    parse,
    read,
    read_and_crop,
    rows,
    standardise,
    to_float,
)


def rules_of(dataset, trainer=lambda dataset: dataset.prefetch(2), sharding="dynamic"):
    wire = dataset.with_options(tf.data.Options())
    captured = Captured(wires=[dataset], shardings=[sharding], distributed=[wire], trained=trainer(wire))
    return {finding.rule: finding for finding in examine(captured)}


FAULTY = {
    "float images made of uint8": ("wide-wire", lambda: images().map(to_float, AUTO).batch(8)),
    "float images cast after batch": ("wide-wire", lambda: images().batch(8).map(to_float, AUTO)),
    "float images of decoded JPEGs": ("wide-wire", lambda: jpegs().map(lambda x: tf.image.resize(
        tf.io.decode_jpeg(x, channels=3), [32, 32]), AUTO).batch(8, drop_remainder=True)),
    "float images flipped by chance": ("wide-wire", lambda: images().map(
        lambda x: tf.image.random_flip_left_right(to_float(x)), AUTO).batch(8)),
    "float64 spectra": ("wide-wire", lambda: tf.data.Dataset.from_tensors(tf.zeros([40, 40], tf.float64)).batch(8)),
    "a function of elements": ("map-before-batch", lambda: rows().map(standardise, AUTO).batch(32)),
    "a function before shuffle and batch": (
        "map-before-batch", lambda: rows().map(standardise, AUTO).shuffle(9).batch(32)),
    "an image warp, which takes batches": ("map-before-batch", lambda: images().map(
        lambda x: tf.cast(tf.image.resize(x, [32, 32]), tf.uint8), AUTO).batch(8)),
    "shuffle of batches": ("shuffle-after-batch", lambda: images().repeat().batch(8).shuffle(64)),
    "shuffle of mapped batches": (
        "shuffle-after-batch", lambda: images().batch(8).map(tf.identity, AUTO).prefetch(2).shuffle(64)),
    "decoding one by one": ("sequential-map", lambda: jpegs().map(decode_to_uint8).batch(8)),
    "reading one by one": ("sequential-interleave", lambda: files().interleave(read, cycle_length=4).batch(8)),
    "decoding again": ("no-cache", lambda: tf.data.Dataset.from_tensor_slices([JPEG] * 8).map(
        decode_to_uint8, AUTO).shuffle(8).repeat().batch(8)),
    "a random crop of all that is decoded": ("decode-then-crop", lambda: jpegs().map(crop, AUTO).batch(8)),
    "a sliced crop of all that is decoded": ("decode-then-crop", lambda: jpegs().map(center_crop, AUTO).batch(8)),
    "a crop in the next map": ("decode-then-crop", lambda: jpegs().map(
        lambda x: tf.io.decode_jpeg(x, channels=3), AUTO).map(lambda x: x[:64, :64], AUTO).batch(8)),
    "a crop within interleave": (
        "decode-then-crop", lambda: files().interleave(read_and_crop, num_parallel_calls=AUTO).batch(8)),
}  # fmt: skip
SOUND = {
    "uint8 images": lambda: images().repeat().shuffle(64).batch(8),
    "floats on the way, uint8 on the wire": lambda: images().batch(8).map(
        lambda x: tf.cast(tf.round(tf.nn.avg_pool2d(tf.cast(x, tf.float32), 3, 1, "SAME")), tf.uint8), AUTO),
    "small float rows": lambda: rows().batch(32),
    "large integers": lambda: tf.data.Dataset.from_tensors(tf.zeros([4096], tf.int64)).batch(8),
    "float16 of its own": lambda: tf.data.Dataset.from_tensors(tf.zeros([4096], tf.float16)).batch(8),
    "a function of batches": lambda: rows().batch(32).map(standardise, AUTO),
    "JPEGs, which decode one by one": lambda: jpegs().map(decode_to_uint8, AUTO).repeat().batch(8),
    "records parsed one by one": lambda: files().interleave(read, num_parallel_calls=AUTO).map(parse, AUTO).batch(8),
    "elements of different lengths": lambda: tf.data.Dataset.range(9).map(
        lambda n: tf.ones([n + 1]), AUTO).padded_batch(3),
    "random numbers by the element": lambda: tf.data.Dataset.range(9).map(
        lambda n: tf.random.stateless_uniform([9], [n, 0]), AUTO).batch(3),
    "a map that must stay before a filter": lambda: rows().map(standardise, AUTO).filter(
        lambda row: row[0] > 0).batch(8),
    "a function with a loop": lambda: rows().map(
        lambda row: tf.while_loop(lambda x: x[0] < 9, lambda x: [x + 1], [row])[0], AUTO).batch(8),
    "shuffle of elements and of batches": lambda: images().shuffle(64).batch(8).shuffle(4),
    "shuffle after unbatch": lambda: images().batch(8).unbatch().shuffle(64).batch(4),
    "batches made at once": lambda: tf.data.Dataset.random().map(
        lambda n: tf.zeros([8, 32, 32, 3], tf.uint8), AUTO),
    "a map that only regroups": lambda: tf.data.Dataset.zip((images(), images())).map(
        lambda x, y: {"x": x, "y": y}).batch(8),
    "reading at once": lambda: files().interleave(read, cycle_length=4, num_parallel_calls=AUTO).batch(8),
    "interleave of what is no file": lambda: tf.data.Dataset.range(4).interleave(tf.data.Dataset.range).batch(8),
    "a cached decode": lambda: tf.data.Dataset.from_tensor_slices([JPEG] * 8).map(
        decode_to_uint8, AUTO).cache().shuffle(8).repeat().batch(8),
    "a decode that is seen once": lambda: tf.data.Dataset.from_tensor_slices([JPEG] * 8).map(
        decode_to_uint8, AUTO).batch(8),
    "a decode too large to keep": lambda: tf.data.Dataset.from_tensor_slices([b""] * 1024).map(
        decode_and_blow_up, AUTO).repeat().batch(8),
    "files of unknown length": lambda: files().interleave(read, num_parallel_calls=AUTO).map(
        decode_to_uint8, AUTO).repeat().batch(8),
    "a crop that alone is decoded": lambda: jpegs().map(decode_only_crop, AUTO).batch(8),
    "a crop beside the whole image": lambda: jpegs().map(crop_beside_whole, AUTO).batch(8),
    "a choice of channels": lambda: jpegs().map(lambda x: tf.cast(channels(x), tf.uint8), AUTO).batch(8),
    "a mirrored decode": lambda: jpegs().map(lambda x: tf.cast(tf.image.resize(
        tf.io.decode_jpeg(x, channels=3)[:, ::-1], [32, 32]), tf.uint8), AUTO).batch(8),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_is_named_with_its_mend(name):
    rule, make = FAULTY[name]
    found = rules_of(make())
    assert rule in found, f"only {set(found)} was found"
    assert found[rule].cost
    assert found[rule].fix


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_said_of_a_sound_pipeline(name):
    assert rules_of(SOUND[name]()) == {}


def test_bytes_are_told_as_they_are_and_as_uint8_and_what_scales_them_in_the_model():
    found = rules_of(images().batch(8).map(to_float, AUTO))["wide-wire"]
    assert found.gain == 4.0
    assert "216 KiB a batch, 54 KiB as uint8" in found.cost
    assert "keras.layers.Rescaling(1 / 255)" in found.fix
    by_image = images().map(tf.image.per_image_standardization, AUTO).batch(8)
    assert "keras.layers.Lambda(tf.image.per_image_standardization)" in rules_of(by_image)["wide-wire"].fix


def test_floats_that_do_not_come_from_pixels_are_narrowed_only_if_the_values_fit():
    found = rules_of(tf.data.Dataset.from_tensors(tf.zeros([40, 40], tf.float64)).batch(8))["wide-wire"]
    assert found.gain == 2.0
    assert "only if the values fit" in found.cost


@pytest.mark.parametrize("after", [lambda d: d, lambda d: d.map(to_float)], ids=["nothing", "a map"])
def test_a_trainer_without_prefetch_is_told(after):
    assert set(rules_of(images().batch(8), trainer=after)) == {"no-prefetch"}
    assert not rules_of(images().batch(8), trainer=lambda d: after(d).prefetch(1))


def test_no_more_files_can_be_open_at_once_than_there_are():
    few = tf.data.Dataset.from_tensor_slices(["a", "b", "c"]).interleave(read, cycle_length=8).batch(8)
    assert rules_of(few)["sequential-interleave"].gain == 3


REFUSED = {
    "take after shuffle": (lambda: rows().shuffle(64).take(32).batch(8), "shuffle after this operation (take)"),
    "mixed pairs": (lambda: tf.data.Dataset.zip((rows().shuffle(64).batch(8), rows().shuffle(64).batch(8))),
                    "for MixUp or CutMix, mix within the batch: tf.gather(x, "),
    "a generator": (lambda: tf.data.Dataset.from_generator(
        lambda: iter(range(50)), output_signature=tf.TensorSpec([], tf.int32)).batch(4), "do what the cost says"),
    "Python": (lambda: tf.data.Dataset.range(9).map(lambda x: tf.py_function(lambda y: y, [x], tf.int64)).batch(3),
               "do what the cost says"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_distribute_would_refuse_is_told_in_its_words(name):
    make, fix = REFUSED[name]
    found = rules_of(make())["refused"]
    assert fix in found.fix
    assert found.cost


ODD = {
    "ragged": lambda: tf.data.Dataset.range(9).map(lambda n: tf.ones([1 + n])).ragged_batch(3).map(lambda r: r * 2),
    "a window": lambda: tf.data.Dataset.range(9).window(4).flat_map(lambda part: part.batch(4)).batch(2),
    "a mixture": lambda: tf.data.Dataset.sample_from_datasets([images().repeat(), images().repeat()]).batch(4),
    "nothing": lambda: tf.data.Dataset.range(0).batch(4),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_judged_is_passed_over_in_silence(name):
    assert rules_of(ODD[name]()) == {}


def test_a_crop_is_told_with_its_size_and_that_its_gain_is_an_estimate():
    found = rules_of(jpegs().map(center_crop, AUTO).batch(8))["decode-then-crop"]
    assert "200 × 200 pixels" in found.cost
    assert (found.is_estimate, found.gain) == (True, 1.4)


def test_a_costly_map_is_told_with_what_takes_long():
    found = rules_of(jpegs().map(decode_to_uint8).batch(8))["sequential-map"]
    assert "Decode, Resize" in found.cost
