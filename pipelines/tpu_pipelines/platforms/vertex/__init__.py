"""Vertex AI: its settings and limits, training as a custom job, its client, and its checks for `doctor`."""
