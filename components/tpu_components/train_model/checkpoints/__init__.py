"""Checkpoints of a training: one file, or a file per host if weights are sharded over hosts."""
