"""Export a job's figures while it runs: to files, an OpenMetrics endpoint, MLflow. No exporter can delay the job."""
