"""Retraining: deciding whether a run is needed, monitoring predictions, and reports for CI."""
