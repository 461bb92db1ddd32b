"""Checks before a run, from the content of files to requests to the platform."""
