"""The simulated cluster: a job's hosts on one Linux machine."""
