"""Ranks that read a dataset themselves draw differently. Layers with one seed, as for image and mask, draw alike."""

import keras
import pytest
import tensorflow as tf
from headrace.tensorflow.sharding import random_state
from headrace.tensorflow.sharding.dataset_graph import DatasetGraph

IMAGE = tf.reshape(tf.range(64.0), [8, 8, 1])


def flipping():
    flip = keras.layers.RandomFlip("horizontal", seed=1)
    return lambda _: flip(IMAGE, training=True)[0, 0, 0] > 0


def generating():
    generator = tf.random.Generator.from_seed(1)
    return lambda _: generator.uniform([]) > 0.5


@pytest.mark.parametrize("make", [flipping, generating])
def test_ranks_that_read_a_dataset_themselves_draw_apart(make):
    def drawn():
        graph = DatasetGraph(tf.data.Dataset.range(64).map(make()))
        random_state.draw_apart(graph)
        return [bool(each) for each in graph.spliced({})]

    assert drawn() != drawn()


def test_layers_of_one_seed_draw_alike_on_every_rank(monkeypatch):
    of_image, of_mask = (keras.layers.RandomRotation(0.4, seed=1) for _ in range(2))
    pairs = tf.data.Dataset.range(20).map(lambda _: (of_image(IMAGE, training=True), of_mask(IMAGE, training=True)))
    drawn = []
    for rank in range(2):
        monkeypatch.setattr(random_state.collectives, "rank", lambda rank=rank: rank)
        graph = DatasetGraph(pairs)
        random_state.draw_apart(graph)
        drawn.append([(image.numpy().tobytes(), mask.numpy().tobytes()) for image, mask in graph.spliced({})])
    assert all(image == mask for each in drawn for image, mask in each)
    assert not {image for image, _ in drawn[0]} & {image for image, _ in drawn[1]}


def test_with_tensorflows_seed_ranks_draw_the_same_in_each_run(monkeypatch):
    monkeypatch.setattr(random_state.compat, "global_seed", lambda: 7)

    def drawn(rank):
        monkeypatch.setattr(random_state.collectives, "rank", lambda: rank)
        graph = DatasetGraph(tf.data.Dataset.range(64).map(flipping()))
        random_state.draw_apart(graph)
        return [bool(each) for each in graph.spliced({})]

    assert drawn(0) == drawn(0) != drawn(1)


def test_operations_with_a_seed_draw_apart_on_ranks_and_flips_of_an_image_and_its_mask_alike(monkeypatch):
    def drawn(rank):
        monkeypatch.setattr(random_state.collectives, "rank", lambda: rank)
        images, masks = (tf.data.Dataset.range(64).map(lambda _: tf.random.uniform([], seed=5)) for _ in range(2))
        graph = DatasetGraph(tf.data.Dataset.zip((images, masks)))
        random_state.seed_apart(graph)
        return [(float(image), float(mask)) for image, mask in graph.spliced({})]

    first, second = drawn(0), drawn(1)
    assert all(image == mask for image, mask in first + second)
    assert not {image for image, _ in first} & {image for image, _ in second}
