"""Preflight of any step that `jax.jit` takes, or that is written as StableHLO."""
