"""Metrics of models: names, estimates, confidence intervals, and the comparison of two models."""
