"""Runs pipelines on this machine with kfp.local, in processes or containers."""
