"""The pipeline: connection of its steps, cache keys, and compilation."""
