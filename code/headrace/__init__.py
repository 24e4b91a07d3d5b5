"""headrace brings preprocessed batches from CPU hosts to the accelerators that train on them."""

__version__ = "0.1.0"
