"""The control channel between hosts: authentication, calls, files."""
