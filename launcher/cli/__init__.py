"""The ``slotwise`` command."""
