"""What people type: the commands of headrace and start_job.py."""
