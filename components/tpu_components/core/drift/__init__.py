"""Drift detection: sketches (small summaries) of data and predictions, and tests that compare them."""
