"""All that knows TensorFlow. Importing this package imports none of it yet."""
