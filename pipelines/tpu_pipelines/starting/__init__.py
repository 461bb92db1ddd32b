"""Inspects a data set, and writes a first configuration for it."""
