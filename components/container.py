"""The container images: the one that every step runs in, and the one that serves."""

import os

# Read when a pipeline is compiled; a digest is best (`…@sha256:…`), since a tag that moves defeats caching.
IMAGE = os.environ.get("TPU_PIPELINES_IMAGE", "tpu-pipelines/python:latest")
SERVING_IMAGE = os.environ.get("TPU_PIPELINES_SERVING_IMAGE", "tpu-pipelines/serving:latest")


def is_pinned(image: str) -> bool:
    """Whether an image is named by digest. Behind a tag that moves, a cached step is stale and nobody knows.

    Example:
        >>> is_pinned("tpu-pipelines/python:latest"), is_pinned("tpu-pipelines/python@sha256:0f")
        (False, True)
    """
    return "@sha256:" in image
