"""One llama-server: its client, its stream, its slots, its probes."""
