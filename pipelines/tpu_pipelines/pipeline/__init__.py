"""The pipeline: connects the steps, computes their cache keys, and compiles them for a platform."""
