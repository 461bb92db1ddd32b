"""Inspects data, and writes a first configuration for them."""
