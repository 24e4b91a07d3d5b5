"""What the ranks of a TensorFlow job tell each other."""
