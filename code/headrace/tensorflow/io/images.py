"""Image operations on whole batches of uint8 pixels, for tf.data pipelines that run on the workers.

One operation on a batch costs far less than one call for each image. No operation keeps state, so any host can run it.
"""

from __future__ import annotations

import math

import tensorflow as tf


def decode_example(record: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a TFRecord (`image/encoded` JPEG, `image/class/label`) as `[size, size, 3]` uint8 and an int32 label."""
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    image = tf.io.decode_jpeg(features["image/encoded"], channels=3)
    image = tf.image.resize(image, [size, size], antialias=True)
    return tf.cast(tf.clip_by_value(image, 0, 255), tf.uint8), tf.cast(features["image/class/label"], tf.int32)


def augment(
    images: tf.Tensor, rotation: float = 0.0, zoom: float = 0.0, shift: float = 0.0, flip: bool = False
) -> tf.Tensor:
    """Turn, scale, move and mirror each image of a batch at random, in one resampling.

    Args:
        images: `[batch, height, width, channels]` uint8.
        rotation: the largest rotation in either direction, in turns (1 is 360°).
        zoom: the largest share by which an image grows or shrinks.
        shift: the largest move to the left or right (a share of the width), and up or down (a share of the height).
        flip: also mirror half of the images left to right.

    Returns:
        Images of the same shape and dtype; pixels from outside an image repeat its edge.
    """
    shape = tf.shape(images)
    batch, height, width = shape[0], tf.cast(shape[1], tf.float32), tf.cast(shape[2], tf.float32)

    def draw(limit: float) -> tf.Tensor:
        return tf.random.uniform([batch], -limit, limit)

    angle = draw(rotation * 2 * math.pi)
    scale = 1.0 + draw(zoom)
    mirror = tf.where(tf.random.uniform([batch]) < 0.5, -1.0, 1.0) if flip else tf.ones([batch])
    cos, sin = tf.cos(angle) * scale, tf.sin(angle) * scale
    center_x, center_y = (width - 1) / 2, (height - 1) / 2
    # Output (x, y) is taken from input (a0 x + a1 y + a2, b0 x + b1 y + b2), about the image's center.
    a0, a1, b0, b1 = cos * mirror, -sin, sin * mirror, cos
    a2 = center_x - a0 * center_x - a1 * center_y + draw(shift) * width
    b2 = center_y - b0 * center_x - b1 * center_y + draw(shift) * height
    zeros = tf.zeros([batch])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=tf.stack([a0, a1, a2, b0, b1, b2, zeros, zeros], axis=1),
        output_shape=shape[1:3],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="NEAREST",
    )


def blur(images: tf.Tensor) -> tf.Tensor:
    """Dilate uint8 images, then blur them, both over squares of 3 × 3 pixels; return uint8."""
    dilated = tf.nn.max_pool2d(tf.cast(images, tf.float32), 3, strides=1, padding="SAME")
    return tf.cast(tf.round(tf.nn.avg_pool2d(dilated, 3, strides=1, padding="SAME")), tf.uint8)


def made_up(batch_size: int, image_size: int, classes: int = 10) -> tf.data.Dataset:
    """Return endless batches of random pixels and labels, with preprocessing that costs as much as for real images.

    The batches are for benchmarks, and to try a job without data. Pixels are dilated and blurred, images rotated,
    zoomed, shifted and flipped at random.

    Returns:
        `[batch_size, image_size, image_size, 3]` of uint8, and `[batch_size]` of int32 below `classes`.
    """

    def make_batch(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        shape = [batch_size, image_size, image_size, 3]
        pixels = tf.random.stateless_uniform(shape, [seed, 0], 0, 256, tf.int32)
        labels = tf.random.stateless_uniform([batch_size], [seed, 1], 0, classes, tf.int32)
        return tf.cast(pixels, tf.uint8), labels

    def preprocess(pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return augment(blur(pixels), rotation=0.05, zoom=0.2, shift=0.05, flip=True), labels

    seeds = tf.data.Dataset.random(rerandomize_each_iteration=True)
    return seeds.map(make_batch, tf.data.AUTOTUNE).map(preprocess, tf.data.AUTOTUNE)
