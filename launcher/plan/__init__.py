"""Whether it fits, before it is started."""
