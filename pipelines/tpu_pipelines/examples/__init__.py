"""Notebooks, and pipelines that combine single components of this package with other components."""
