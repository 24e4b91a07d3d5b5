"""Where a job can run: SageMaker, and simulated hosts of this machine. Each takes the same JobSpec."""
