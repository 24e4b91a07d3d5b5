"""A training loop with tf.GradientTape and Horovod's API. As with `fit`, headrace measures it and saves checkpoints."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import BATCH, datasets, loss, network
from headrace.tensorflow import callbacks

hvd.init()
EPOCHS = 12

train, held_out = datasets()

model, optimizer, objective = network(), keras.optimizers.Adam(0.003), loss()
accuracy = keras.metrics.SparseCategoricalAccuracy()


@tf.function
def train_step(features, labels):
    with tf.GradientTape() as tape:
        value = objective(labels, model(features, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return value


training = callbacks.Training(model, optimizer, BATCH, checkpoint=callbacks.Checkpoint())
for _epoch in training.epochs(EPOCHS):
    for features, labels in training.steps(train):
        value = train_step(features, labels)
    accuracy.reset_state()
    for features, labels in held_out:
        accuracy.update_state(labels, model(features))
    training.end_epoch(loss=value, val_accuracy=accuracy.result())
