"""Preflight of any step that `jax.jit` accepts or that is a StableHLO module."""
