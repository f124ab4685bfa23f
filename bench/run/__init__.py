"""What is sent to real servers."""
