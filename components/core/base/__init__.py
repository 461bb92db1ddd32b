"""Errors, typed values, digests, code fingerprints, retries, termination, progress, terminal text: no ML, no files."""
