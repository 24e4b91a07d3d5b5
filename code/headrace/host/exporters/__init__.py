"""Where a job's figures go while it runs: files, an OpenMetrics endpoint, MLflow. None of them can hold the job up."""
