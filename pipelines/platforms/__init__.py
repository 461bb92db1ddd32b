"""Vertex AI and Kubeflow: what a job is there, how the training step asks for a TPU, and how both are spoken to."""
