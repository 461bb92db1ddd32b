"""Metrics: what each is called and how it is estimated, confidence intervals, and the comparison of two models."""
