"""`headrace lint`: what costs most in a training script's tf.data pipeline, found by looking at the pipeline itself."""

DATA_HOST_CORES = 72
"""Those of ml.c5.18xlarge, the data hosts' default type in start_job.py."""
