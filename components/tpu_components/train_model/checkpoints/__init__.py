"""Checkpoints of a training run: one file, plus one file per host if weights are sharded over hosts."""
