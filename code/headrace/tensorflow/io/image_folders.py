"""Make a dataset of images that lie in one folder for each class. Workers decode them to uint8."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from headrace.errors import InputError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png")
CHANNELS = {"rgb": 3, "rgba": 4, "grayscale": 1}
LABELS = ("int", "categorical", "binary", None)
SUBSETS = ("training", "validation", None)


def from_folders(
    directory: str | Path,
    labels: str = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int = 0,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
) -> tf.data.Dataset:
    """Return the dataset of `keras.utils.image_dataset_from_directory`, but with uint8 pixels.

    All processes that see the same folder get the same dataset: file names are sorted, and `seed` decides which images
    are held out. File names, not images, are shuffled. The arguments are Keras's.

    Returns:
        Batches `[n, height, width, channels]` of uint8 with labels: `[n]` int32 (`int`), `[n, classes]` float32
        (`categorical`), `[n, 1]` float32 (`binary`), or no labels (None). Without `batch_size`, single images.

    Raises:
        InputError: an argument has no valid value, or there are no images.
    """
    for name, value, allowed in (
        ("labels", labels, ("inferred",)), ("label_mode", label_mode, LABELS), ("subset", subset, SUBSETS),
        ("color_mode", color_mode, tuple(CHANNELS)),
    ):  # fmt: skip
        if value not in allowed:
            raise InputError(f"{name} is {value!r}; expected one of {', '.join(map(str, allowed))}")
    if (validation_split is None) != (subset is None) or not 0 <= (validation_split or 0) < 1:
        raise InputError("give validation_split (a share below 1) and subset ('training' or 'validation'), or neither")
    files, numbers, classes = _listed(Path(directory), class_names)
    if label_mode == "binary" and classes != 2:
        raise InputError(f"label_mode='binary' needs 2 classes, and {directory} has {classes}: use 'int'")
    if validation_split is not None:
        held_out = int(validation_split * len(files))
        order = np.random.default_rng(seed).permutation(len(files))
        chosen = np.sort(order[:held_out] if subset == "validation" else order[held_out:])
        files, numbers = [files[place] for place in chosen], numbers[chosen]
    if not files:
        raise InputError(f"no image of {directory} is left for subset={subset!r}: change validation_split")

    def decode(path: tf.Tensor, number: tf.Tensor) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_image(tf.io.read_file(path), CHANNELS[color_mode], expand_animations=False)
        image = tf.image.resize(tf.ensure_shape(image, [None, None, CHANNELS[color_mode]]), image_size, interpolation)
        pixels = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
        if label_mode is None:
            return pixels
        if label_mode == "categorical":
            return pixels, tf.one_hot(number, classes)
        return pixels, tf.cast(number, tf.float32)[None] if label_mode == "binary" else number

    dataset = tf.data.Dataset.from_tensor_slices((files, numbers))
    if shuffle:
        dataset = dataset.shuffle(len(files), seed=seed)
    dataset = dataset.map(decode, tf.data.AUTOTUNE)
    return dataset if batch_size is None else dataset.batch(batch_size)


def _listed(directory: Path, class_names: Sequence[str] | None) -> tuple[list[str], NDArray[Any], int]:
    """Return the sorted image files, the class index of each file, and the number of classes."""
    if not directory.is_dir():
        raise InputError(f"there is no folder {directory}; check the channel, and that this host's group gets it")
    there = {each.name for each in directory.iterdir() if each.is_dir() and not each.name.startswith(".")}
    classes = list(class_names or sorted(there))
    if missing := sorted(set(classes) - there):
        raise InputError(f"class_names has {missing[0]!r}, and {directory} has no such folder; correct the name")
    files, numbers = [], []
    for number, name in enumerate(classes):
        found = sorted(path for path in (directory / name).rglob("*") if path.suffix.lower() in SUFFIXES)
        files += [str(path) for path in found]
        numbers += [number] * len(found)
    if not files:
        raise InputError(
            f"no file ({', '.join(SUFFIXES)}) is in the {len(classes)} class folders of {directory}: check this path"
        )
    return files, np.asarray(numbers, np.int32), len(classes)
