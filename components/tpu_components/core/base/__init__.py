"""Errors, typed values, digests, states, retries, termination, progress, fingerprints, frameworks: no ML, no files."""
