"""What runs on the user's desk: from a job spec to a SageMaker training job, and back to its results."""
