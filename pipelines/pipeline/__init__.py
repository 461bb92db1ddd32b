"""The pipeline: wiring, cache keys, and the compiled file."""
