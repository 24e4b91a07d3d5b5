"""`headrace lint`: find what costs most in a training script's tf.data pipeline, without training."""
