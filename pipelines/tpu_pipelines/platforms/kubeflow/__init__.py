"""Kubeflow Pipelines on a cluster: settings and limits, the training as a pod or JobSet, client, and checks."""
