"""The training script, run on every rank. This is the file to copy and edit: your model, your data.

It runs alone too (`python code/train_dnn.py`), on one process with data made in that process.
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

# Arguments: every hyperparameter of the job arrives as --name value; those of the launcher are not ours.
parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--model", choices=["resnet50", "small_cnn"], default="resnet50")
parser.add_argument("--batch_size", type=int, default=32, help="per rank")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps_per_epoch", type=int, default=0, help="default: the dataset's size")
parser.add_argument("--learning_rate", type=float, default=0.001, help="of one rank; scaled by their number")
parser.add_argument("--warmup_epochs", type=float, default=1.0)
parser.add_argument("--image_size", type=int, default=32, help="pixels; images of the channel are resized")
parser.add_argument("--channel", default=os.environ.get("SM_CHANNEL_TRAINING", ""), help="folder of TFRecords")
parser.add_argument("--log_every", type=int, default=10, help="steps between two log events")
args, _ = parser.parse_known_args()

hvd.init()
for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus := tf.config.list_physical_devices("GPU"):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

# Dataset: uint8 pixels and labels. Everything before `distribute` runs on the data hosts' workers.
checkpoint = callbacks.Checkpoint()
shards = held_out = None
if args.channel:
    folder = Path(args.channel)
    about = json.loads((folder / "dataset.json").read_text())
    classes = len(about["classes"])

    def decode(record):
        return images.decode_example(record, args.image_size)

    # The training files in another order each epoch, each record with its tag: the ledger knows what was trained on.
    shards = data.Shards.of_files(sorted(folder.glob("train-*.tfrecord")), checkpoint)
    examples = shards.elements
    train = shards.tagged().map(lambda tag, record: (tag, *decode(record)), tf.data.AUTOTUNE)
    train = train.shuffle(512).batch(args.batch_size, drop_remainder=True)
    augment = lambda x: images.augment(x, rotation=0.02, zoom=0.1, shift=0.05)  # noqa: E731
    train = train.map(lambda tags, x, y: (tags, augment(x), y), tf.data.AUTOTUNE)
    held_out = tf.data.TFRecordDataset(sorted(str(path) for path in folder.glob("test-*.tfrecord")))
    held_out = held_out.shard(hvd.size(), hvd.rank()).map(decode, tf.data.AUTOTUNE).batch(args.batch_size)
    own_part = range(hvd.rank(), about["test_examples"], hvd.size())
    held_out = held_out.cache().apply(tf.data.experimental.assert_cardinality(-(-len(own_part) // args.batch_size)))
else:  # without data: something to preprocess, to measure with
    classes, examples = 10, 1024 * 10
    train = images.made_up(args.batch_size, args.image_size, classes)

if hvd.rank() == 0:
    print(f"training on {args.channel or 'made-up images: no channel named training is seen here'}")
train = data.distribute(train)
train = (shards.track(train) if shards else train).prefetch(tf.data.AUTOTUNE)
steps_per_epoch = args.steps_per_epoch or max(examples // (args.batch_size * hvd.size()), 1)

# Model: the pixels become floats between 0 and 1 here, on the trainer.
shape = (args.image_size, args.image_size, 3)
layers = keras.layers
pixels = keras.Input(shape, dtype="uint8")
x = layers.Rescaling(1 / 255)(pixels)
if args.model == "resnet50":
    backbone = keras.applications.ResNet50(weights=None, include_top=False, input_shape=shape, pooling="avg")
    for layer in backbone.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.9  # Keras's 0.99 needs hundreds of steps before held-out results mean anything.
    x = backbone(x)
else:
    for filters in (16, 32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
model = keras.Model(pixels, layers.Dense(classes, activation="softmax")(x))

learning_rate = args.learning_rate * hvd.size()
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(learning_rate))
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)

# Training: all ranks start equal, average what they measure, and rank 0 keeps what was learned.
initial_epoch = checkpoint.restore(model)
model.fit(
    train,
    epochs=args.epochs,
    initial_epoch=initial_epoch,
    steps_per_epoch=steps_per_epoch,
    validation_data=held_out,
    shuffle=False,  # the dataset is
    verbose=0,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(learning_rate, args.warmup_epochs, steps_per_epoch=steps_per_epoch),
        callbacks.Measure(train, args.batch_size, args.log_every),
        checkpoint,
    ],
)
if hvd.rank() == 0:
    model_dir = Path(os.environ.get("SM_MODEL_DIR", "model"))
    model_dir.mkdir(parents=True, exist_ok=True)
    model.save(model_dir / "model.keras")
