"""Vertex AI and Kubeflow: jobs, schedules, the training step on a TPU, and the clients of both."""
