"""What slotwise itself costs."""
