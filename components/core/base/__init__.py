"""Errors, states, retries, termination, progress, terminal text and code fingerprints: no ML, no files."""
