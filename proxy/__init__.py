"""The proxy: a pure scheduler (events, mirror, scheduler, sse) inside a thin asynchronous shell."""
