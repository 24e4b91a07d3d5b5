"""SageMaker backend, which runs on the user's machine: turn a job spec into a training job, fetch its results."""
