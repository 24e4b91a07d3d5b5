"""Places where a job can run: SageMaker, Slurm, and simulated hosts of this machine. Each takes the same JobSpec."""
