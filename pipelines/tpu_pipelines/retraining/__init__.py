"""Retraining: the decision whether a run is needed, and reports for CI."""
