"""Parts of the pipelines that lint examines: sources, and functions for their elements."""

import tensorflow as tf

AUTO = tf.data.AUTOTUNE
PIXELS = tf.cast(tf.random.stateless_uniform([64, 48, 48, 3], [1, 2], 0, 256, tf.int32), tf.uint8)
JPEG = tf.io.encode_jpeg(tf.cast(tf.image.resize(PIXELS[0], [300, 400]), tf.uint8)).numpy()


def images():
    return tf.data.Dataset.from_tensor_slices(PIXELS)


def rows(values=tf.float32):
    return tf.data.Dataset.from_tensor_slices(tf.zeros([256, 16], values)).repeat()


def jpegs():
    return tf.data.Dataset.from_tensors(JPEG).repeat(8)


def to_float(image):
    return tf.cast(image, tf.float32) / 255


def standardise(row):
    return tf.clip_by_value((row - tf.reduce_mean(row)) / (tf.math.reduce_std(row) + 1), -3, 3) * 2 + 1


def decode(data):
    return tf.ensure_shape(tf.image.resize(tf.io.decode_jpeg(data, channels=3), [16, 16]), [16, 16, 3])


def decode_to_uint8(data):
    return tf.cast(decode(data), tf.uint8)


def decode_and_blow_up(data):
    # Each decoded image has 3 MiB, so 1,024 of them are too large to keep.
    return tf.cast(tf.image.resize(tf.io.decode_jpeg(data, channels=3), [1024, 1024]), tf.uint8)


def crop(data):
    return tf.image.random_crop(tf.io.decode_jpeg(data, channels=3), [64, 64, 3])


def center_crop(data):
    return tf.cast(tf.image.resize(tf.io.decode_jpeg(data, channels=3)[20:220, 30:230], [32, 32]), tf.uint8)


def decode_only_crop(data):
    return tf.io.decode_and_crop_jpeg(data, [10, 10, 64, 64], channels=3)


def crop_beside_whole(data):
    image = tf.io.decode_jpeg(data, channels=3)
    return image[:64, :64], tf.cast(tf.image.resize(image, [64, 64]), tf.uint8)


def channels(data):
    return tf.image.resize(tf.io.decode_jpeg(data, channels=3)[:, :, :1], [64, 64])


def read(name):
    return tf.data.TFRecordDataset(name)


def read_and_crop(name):
    return tf.data.TFRecordDataset(name).map(crop)


def parse(record):
    return tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([16], tf.float32)})["x"]


def files():
    return tf.data.Dataset.from_tensor_slices(["/nowhere/a", "/nowhere/b", "/nowhere/c", "/nowhere/d"])
