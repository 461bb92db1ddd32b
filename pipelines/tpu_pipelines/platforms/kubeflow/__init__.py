"""Kubeflow Pipelines on a cluster: settings and limits, training as a pod or JobSet, client, and checks."""
