"""What a rank and the launcher of its host tell each other."""
