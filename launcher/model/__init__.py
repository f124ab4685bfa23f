"""What a model's file says."""
