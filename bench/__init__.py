"""Traces, bounds, demos and benchmarks; nothing the server needs at run time."""
