"""Checks before a run: their list, where a workspace keeps its files, and preflight of the training step."""
