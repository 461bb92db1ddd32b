"""The interface that every platform implements, and one folder per platform: Vertex AI, Kubeflow, this machine."""
