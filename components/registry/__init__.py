"""Versions of models and the aliases that point to them: in a folder, or on Vertex AI."""
