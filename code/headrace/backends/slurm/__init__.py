"""Slurm backend: the same job on a cluster of one's own."""
