"""Who is who in a job: hosts, groups and roles, their addresses, and the folders of a host and of a run."""
