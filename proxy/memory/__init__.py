"""The machine's memory: the watch on it, and what is taken back."""
