"""What a job is, before it runs anywhere: its spec, the hosts' settings, the files that hosts get, instance types."""
