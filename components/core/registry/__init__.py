"""Versions of models and the aliases that point to them: in a folder, in a bucket, on Vertex AI."""
