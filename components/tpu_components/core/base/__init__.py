"""Errors, typed values, digests, states, retries, termination, progress, fingerprints and lazy framework imports."""
