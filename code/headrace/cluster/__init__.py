"""A job's hosts with their groups, roles and addresses, and the folders of a host and of a run."""
