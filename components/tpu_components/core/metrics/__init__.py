"""Metrics: their names and estimates, confidence intervals, and the comparison of two models."""
