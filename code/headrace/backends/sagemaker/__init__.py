"""The SageMaker backend, on the user's machine: turns a job spec into a training job and fetches the results."""
