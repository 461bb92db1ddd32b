"""Retraining: deciding whether a run is needed, and reports for CI."""
