"""The launcher: code that runs on every host of a job, whatever the framework."""
