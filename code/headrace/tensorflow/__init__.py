"""All code for TensorFlow. Importing this package does not import TensorFlow yet."""
