"""Clients of Vertex AI and Kubeflow: jobs, schedules, and the training step on a TPU."""
