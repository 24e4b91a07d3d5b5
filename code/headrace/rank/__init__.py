"""Code that runs in each rank, and its messages to and from the launcher of its host."""
