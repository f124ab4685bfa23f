"""What became of every request. Pure."""
