"""What a request's body says. Pure."""
