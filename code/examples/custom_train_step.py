"""A model with its own train_step, trained by fit."""

import headrace.tensorflow.horovod_keras as hvd
import keras
import tensorflow as tf
from digits import QUIET, datasets, loss, network, usual

hvd.init()
EPOCHS = 12

train, held_out = datasets()


class Smoothed(keras.Model):
    """A model that trains with label smoothing of 0.1."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def call(self, features, training=False):
        return self.inner(features, training=training)

    def train_step(self, batch):
        features, labels = batch
        targets = 0.9 * tf.one_hot(labels, 10) + 0.01
        with tf.GradientTape() as tape:
            logits = self(features, training=True)
            value = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(targets, logits))
        gradients = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            metric.update_state(value) if metric.name == "loss" else metric.update_state(labels, logits)
        return {metric.name: metric.result() for metric in self.metrics}


model = Smoothed()
model.build((None, 64))
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.003)), loss(), metrics=["accuracy"])
model.fit(train, epochs=EPOCHS, validation_data=held_out, callbacks=usual(train), **QUIET)
