"""What is counted and kept: series, the journal, one line a request."""
