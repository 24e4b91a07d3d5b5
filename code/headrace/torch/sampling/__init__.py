"""Which samples a rank takes, and when."""
