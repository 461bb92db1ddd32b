"""Drift detection: sketches (small summaries) of data and predictions, and statistical tests between two of them."""
