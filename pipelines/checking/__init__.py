"""Checks before a run: the list of checks, the paths of a workspace, and preflight of the training step."""
