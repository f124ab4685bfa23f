"""The scheduler: events in, actions out. Pure: no clock, no effects."""
