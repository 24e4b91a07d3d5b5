"""`headrace lint`: what costs most in a training script's tf.data pipeline, found by looking at the pipeline itself."""
