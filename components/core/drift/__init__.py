"""Sketches of data and of predictions, and whether two of them differ."""
