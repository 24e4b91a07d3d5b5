"""The commands that people type: `headrace …` and start_job.py."""
