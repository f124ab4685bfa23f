"""From a prompt to its token ids."""
