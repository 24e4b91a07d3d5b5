"""Description of a job before it runs: its spec, the hosts' settings, the files that hosts get, instance types."""
