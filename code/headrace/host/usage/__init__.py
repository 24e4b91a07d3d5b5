"""What a host's processes use: CPU time, memory, network, GPUs."""
