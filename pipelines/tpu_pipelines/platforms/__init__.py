"""Interface of a platform, and a folder for each: Vertex AI, Kubeflow, and this machine."""
