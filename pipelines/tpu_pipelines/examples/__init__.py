"""Notebooks, and pipelines that use single components of this package beside others."""
