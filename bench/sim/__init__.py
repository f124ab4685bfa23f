"""Whole schedules in virtual time."""
