"""Agreements and messages between the ranks of a TensorFlow job."""
