"""The use of a host's CPU time, memory, network and GPUs by its processes."""
