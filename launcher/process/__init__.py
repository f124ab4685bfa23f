"""Processes: engines, and this one."""
