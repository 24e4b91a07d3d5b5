"""Code that runs on every host, for any framework."""
