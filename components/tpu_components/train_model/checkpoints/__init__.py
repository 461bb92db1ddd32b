"""Checkpoints of a training run: one file, or one file per host if weights are sharded over hosts."""
