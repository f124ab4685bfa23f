"""Starts, checks and supervises llama-server processes from YAML profiles."""
