"""Estimates memory, time and price of your own step: a function that `jax.jit` accepts, or a StableHLO module."""
