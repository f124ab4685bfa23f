"""What a user wrote, checked."""
