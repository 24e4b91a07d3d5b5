"""The Slurm backend: runs a job on the user's own cluster."""
