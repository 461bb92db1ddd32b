"""Errors, typed values, digests, states, retries, termination, progress, code fingerprints: no ML, no files."""
