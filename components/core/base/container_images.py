"""The container images: those that the steps run in, and the one that serves."""

import os
from typing import Any

LOCAL_IMAGE = "tpu-pipelines/python:latest"  # What `make image` builds, and no platform can pull.
# Read when a pipeline is compiled; a digest is best (`…@sha256:…`), since a tag that moves defeats caching.
IMAGE = os.environ.get("TPU_PIPELINES_IMAGE", LOCAL_IMAGE)
# Of the steps that start Beam's workers, and of these: Beam excludes libraries that the other steps need.
BEAM_IMAGE = os.environ.get("TPU_PIPELINES_BEAM_IMAGE", "tpu-pipelines/beam:latest")
SERVING_IMAGE = os.environ.get("TPU_PIPELINES_SERVING_IMAGE", "tpu-pipelines/serving:latest")


def other_steps_image() -> str:
    """Return the image of the steps that need no TPU and no compiler for one, if it is not training's; else nothing."""
    named = os.environ.get("TPU_PIPELINES_STEPS_IMAGE", "")
    return named if named != IMAGE else ""


STEPS_IMAGE = other_steps_image() or IMAGE  # Smaller, where it is named.


def in_place_of_shell(component: Any) -> Any:
    """Return a KFP component whose Python takes the place of the shell that KFP starts it with.

    That shell would be the first process of the container, to which a platform sends SIGTERM; it passes none on.
    """
    command = component.component_spec.implementation.container.command
    command[:] = [word.replace("_KFP_RUNTIME=true python3", "_KFP_RUNTIME=true exec python3") for word in command]
    return component


def is_in_registry(image: str, is_clusters_own: bool = False) -> bool:
    """Return whether an image's name says which registry has it: without one it is that of whoever built it.

    Args:
        image: Its name.
        is_clusters_own: Whether a registry without a domain will do, as one that a cluster has itself.

    Example:
        >>> is_in_registry("tpu-pipelines/python:latest"), is_in_registry("docker.io/me/python:latest")
        (False, True)
    """
    registry, separator, _ = image.partition("/")
    is_local = ":" in registry or registry == "localhost"
    return bool(separator) and (is_clusters_own if is_local else "." in registry)


def is_pinned(image: str) -> bool:
    """Return whether an image is named by digest. Behind a tag that moves, a cached step is stale and nobody knows.

    Example:
        >>> is_pinned("tpu-pipelines/python:latest"), is_pinned("tpu-pipelines/python@sha256:0f")
        (False, True)
    """
    return "@sha256:" in image
