"""Measure image operations on two processors: image by image, in batches, in Ray Data, in PyTorch.

    python -m bench.pipeline [--repeats 5]

Images of 32 × 32 are dilated and blurred, then rotated, zoomed, shifted and mirrored at random. code/train_dnn.py
does this with made-up images. Nothing crosses a network. The pipeline has two forms. "image by image" is like public
sample code: it maps one image at a time, and puts the results into batches of floats. "ours" is like code/train_dnn.py:
it maps whole batches of uint8. Ray Data runs "ours" in two actors of one thread each. PyTorch's DataLoader runs both
forms in two workers, with PyTorch's operations. Ray Data and PyTorch are measured if `tools/peers.py` has installed
them. The command `make bench` installs ray, but not torch, whose CUDA takes gigabytes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench import measure

SECONDS = 4.0
BATCH = 1024
SHAPE = (32, 32, 3)
PEERS = Path(__file__).parents[1] / ".venv-peers"
RAY, TORCH = PEERS / "ray", PEERS / "torch"


def main(argv=None):
    repeats = measure.arguments(__doc__, argv).repeats
    import tensorflow as tf

    forms = {"image by image": image_by_image(tf), "ours": ours(tf)}
    rates = {}
    with measure.pinned(*measure.two_processors()):
        for _ in range(repeats):
            for name, dataset in forms.items():
                rates.setdefault(name, []).append(images_per_s(dataset))
            if (RAY / ".ready").exists():
                rates.setdefault("Ray Data", []).append(peer("-m", "bench.ray_data", RAY, SECONDS))
            if (TORCH / ".ready").exists():
                for title, form in (("DataLoader", "batches"), ("DataLoader, image by image", "images")):
                    script = Path(__file__).parent / "torch_data.py"
                    rate = peer(script, form, BATCH, SHAPE[0], SECONDS, python=TORCH / "bin" / "python")
                    rates.setdefault(title, []).append(rate)
    rows = [{"form": name, "images/s": measure.median(values)} for name, values in rates.items()]

    def ratio(other):
        return measure.median([a / b for a, b in zip(rates["ours"], rates[other], strict=True)])

    figures = {"pipeline_vs_per_image": ratio("image by image")}
    for title, key in (("Ray Data", "pipeline_vs_ray_data"), ("DataLoader", "pipeline_vs_dataloader")):
        if title in rates:
            figures[key] = ratio(title)
    measure.leave("pipeline", figures, rows, repeats=repeats)


def augmented(x):
    """Augment a batch as `headrace.tensorflow.io.images.made_up` does."""
    from headrace.tensorflow.io import images

    x = images.blur(x)
    return images.augment(x, rotation=0.05, zoom=0.2, shift=0.05, flip=True)


def image_by_image(tf):
    images = tf.data.Dataset.from_tensors(random_pixels(tf, SHAPE)).repeat()
    images = images.map(lambda x: tf.cast(augmented(x[None])[0], tf.float32) / 255, tf.data.AUTOTUNE)
    return images.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def ours(tf):
    batches = tf.data.Dataset.from_tensors(random_pixels(tf, (BATCH, *SHAPE))).repeat()
    return batches.map(augmented, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def random_pixels(tf, shape):
    return tf.cast(tf.random.stateless_uniform(shape, [1, 2], 0, 256, tf.int32), tf.uint8)


def images_per_s(dataset):
    batches = iter(dataset)
    return BATCH * measure.per_second(lambda: next(batches), SECONDS, warm_up=3)


def peer(*arguments, python=sys.executable):
    """Run a script that measures and prints images per second; return that figure."""
    command = [str(each) for each in (python, *arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])["images_per_s"]


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    main()
