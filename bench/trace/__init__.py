"""Recorded and made-up calls, read and ordered."""
