"""Small models beside the main one."""
