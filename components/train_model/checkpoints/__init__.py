"""Checkpoints of a training, whole or in one file per host."""
