"""The local backend: simulates a job's hosts on one Linux machine."""
