"""What runs on every host, whatever the framework."""
