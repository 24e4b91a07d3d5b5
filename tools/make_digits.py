"""Write scikit-learn's bundled handwritten digits (1,797 real images) as sharded TFRecords of JPEGs.

The images are enlarged from 8×8 to 64×64 pixels. A fifth is held out. Each record has the usual fields `image/encoded`
and `image/class/label`; `dataset.json` has the number of images.

    python tools/make_digits.py FOLDER
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

TRAIN_FILES, TEST_FILES = 8, 2
SIZE = 64
HELD_OUT = 0.2
SEED = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder for the files; not changed if it is complete")
    folder = parser.parse_args().folder
    if (folder / "dataset.json").is_file():
        print(f"{folder} exists already")
        return 0
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    counts = write(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(f"{folder}: {counts['train']} training and {counts['test']} held-out images")
    return 0


def write(folder: Path) -> dict[str, int]:
    import numpy as np
    import tensorflow as tf
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.images))
    held_out = int(len(order) * HELD_OUT)
    parts = {"test": (order[:held_out], TEST_FILES), "train": (order[held_out:], TRAIN_FILES)}
    pixels = (digits.images * (255 / 16)).astype("uint8")[..., None].repeat(3, axis=-1)
    for part, (indices, files) in parts.items():
        for number, members in enumerate(np.array_split(indices, files)):
            path = folder / f"{part}-{number:05d}-of-{files:05d}.tfrecord"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in members:
                    image = tf.cast(tf.image.resize(pixels[index], [SIZE, SIZE]), tf.uint8)
                    jpeg = tf.io.encode_jpeg(image).numpy()
                    writer.write(example(jpeg, int(digits.target[index])).SerializeToString())
    counts = {part: len(indices) for part, (indices, _) in parts.items()}
    about = {
        "classes": [str(name) for name in digits.target_names],
        "image_shape": [SIZE, SIZE, 3],
        "train_examples": counts["train"],
        "test_examples": counts["test"],
    }
    (folder / "dataset.json").write_text(json.dumps(about, indent=2) + "\n")
    return counts


def example(jpeg: bytes, label: int):  # type: ignore[no-untyped-def]
    import tensorflow as tf

    return tf.train.Example(
        features=tf.train.Features(
            feature={
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(main())
