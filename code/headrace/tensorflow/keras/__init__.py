"""Training with Keras on several ranks: optimizer, callbacks, measurements."""
