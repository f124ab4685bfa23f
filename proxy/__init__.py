"""The proxy: a pure scheduler (``core``) inside a thin asynchronous shell."""
