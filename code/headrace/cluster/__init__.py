"""The hosts of a job (their groups, roles and addresses), and the paths of files on a host and in a run's folder."""
