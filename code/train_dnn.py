"""The training script, run on every rank. This is the file to copy and edit: your data, your model.

It also runs alone, in one process that makes its own data: `python code/train_dnn.py`.
"""

import argparse
import json
import os
from pathlib import Path

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from headrace.tensorflow import callbacks, data
from headrace.tensorflow.io import images
from keras import layers

POLICIES = ["float32", "mixed_bfloat16", "mixed_float16"]


def make_datasets(args, checkpoint):
    """Return training batches (uint8), the numbers of examples and classes, and this rank's held-out batches."""
    if not args.channel:  # made-up images, for measurements
        return images.made_up(args.batch_size, args.image_size, classes=10), 10_240, 10, None
    folder = Path(args.channel)
    decode = lambda record: images.decode_example(record, args.image_size)  # noqa: E731
    augment = lambda x, y: (images.augment(x, rotation=0.02, zoom=0.1, shift=0.05), y)  # noqa: E731
    # Each epoch reads the files in another order. A job that is started again goes on where this one stopped.
    shards = data.Shards.of_files(sorted(folder.glob("train-*.tfrecord")), checkpoint)
    train = shards.map(decode).shuffle(512).batch(args.batch_size, drop_remainder=True).map(augment)
    held_out = tf.data.TFRecordDataset(sorted(map(str, folder.glob("test-*.tfrecord"))))
    held_out = data.split_by_rank(held_out.map(decode, tf.data.AUTOTUNE).batch(args.batch_size)).cache()
    return train, shards.elements, len(json.loads((folder / "dataset.json").read_text())["classes"]), held_out


def make_model(args, classes):
    """Return a classifier of uint8 images; pixels become floats between 0 and 1 here, on the trainer."""
    pixels = keras.Input((args.image_size, args.image_size, 3), dtype="uint8")
    x = layers.Rescaling(1 / 255)(pixels)
    if args.model == "resnet50":
        backbone = keras.applications.ResNet50(weights=None, include_top=False, input_shape=x.shape[1:], pooling="avg")
        for layer in backbone.layers:
            if isinstance(layer, layers.BatchNormalization):
                layer.momentum = 0.9  # With Keras's default, 0.99, held-out results mean nothing for hundreds of steps.
        x = backbone(x)
    else:
        for filters in (16, 32, 64):
            x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
        x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    return keras.Model(pixels, layers.Dense(classes, activation="softmax", dtype="float32")(x))


def main():
    # Every hyperparameter of the job arrives as --name value.
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", choices=["resnet50", "small_cnn"], default="resnet50")
    parser.add_argument("--batch_size", type=int, default=32, help="per rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps_per_epoch", type=int, default=0, help="default: one pass over the dataset")
    parser.add_argument("--learning_rate", type=float, default=0.001, help="multiplied by the number of ranks")
    parser.add_argument("--warmup_epochs", type=float, default=1.0)
    parser.add_argument("--image_size", type=int, default=32, help="height and width of the images, in pixels")
    parser.add_argument("--mixed_precision", choices=POLICIES, default=POLICIES[0])
    parser.add_argument("--channel", default=os.environ.get("SM_CHANNEL_TRAINING", ""), help="folder of TFRecords")
    parser.add_argument("--log_every", type=int, default=10, help="steps between two log events")
    args, _ = parser.parse_known_args()

    hvd.init()  # chooses this rank's GPU, so it comes before the first tensor
    keras.mixed_precision.set_global_policy(args.mixed_precision)
    checkpoint = callbacks.Checkpoint()
    train, examples, classes, held_out = make_datasets(args, checkpoint)
    if hvd.rank() == 0:
        print(f"training on {args.channel or 'made-up images: this host has no channel named training'}")
    # What comes before `distribute` runs on the data hosts' workers; what comes after it runs here.
    train = data.prefetch_to_device(data.distribute(train).prefetch(tf.data.AUTOTUNE))
    steps = args.steps_per_epoch or max(examples // (args.batch_size * hvd.size()), 1)

    model, learning_rate = make_model(args, classes), args.learning_rate * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    model.fit(
        train,
        epochs=args.epochs,
        initial_epoch=checkpoint.restore(model),
        steps_per_epoch=steps,
        validation_data=held_out,
        shuffle=False,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # all ranks start from rank 0's state
            hvd.callbacks.MetricAverageCallback(),  # combines the metrics of all ranks
            hvd.callbacks.LearningRateWarmupCallback(learning_rate, args.warmup_epochs, steps_per_epoch=steps),
            callbacks.Measure(train, args.batch_size, args.log_every),
            checkpoint,
        ],
    )
    if hvd.rank() == 0:
        folder = Path(os.environ.get("SM_MODEL_DIR", "model"))
        folder.mkdir(parents=True, exist_ok=True)
        model.save(folder / "model.keras")


if __name__ == "__main__":
    main()
