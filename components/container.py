"""The container image that every step runs in."""

import os

# Read when a pipeline is compiled; a digest is best (`…@sha256:…`), since a tag that moves defeats caching.
IMAGE = os.environ.get("TPU_PIPELINES_IMAGE", "tpu-pipelines/python:latest")
