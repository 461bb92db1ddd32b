"""Names of the container images of the steps and of the server."""

import copy
import os
from typing import Any

LOCAL_IMAGE = "tpu-pipelines/python:latest"  # Built by `make image`; platforms cannot pull it.
# Read when a pipeline is compiled. Name it by its digest (`…@sha256:…`): after a tag moves, cached steps are stale.
IMAGE = os.environ.get("TPU_PIPELINES_IMAGE", LOCAL_IMAGE)
# Image of Beam's workers and of the steps that start them: Beam excludes libraries that the other steps need.
BEAM_IMAGE = os.environ.get("TPU_PIPELINES_BEAM_IMAGE", "tpu-pipelines/beam:latest")
SERVING_IMAGE = os.environ.get("TPU_PIPELINES_SERVING_IMAGE", "tpu-pipelines/serving:latest")


def other_steps_image() -> str:
    """Return the image for steps that need neither a TPU nor its compiler; empty if they use the training image."""
    named = os.environ.get("TPU_PIPELINES_STEPS_IMAGE", "")
    return named if named != IMAGE else ""


STEPS_IMAGE = other_steps_image() or IMAGE  # Smaller than `IMAGE`, if the variable is set.


def in_place_of_shell(component: Any) -> Any:
    """Make the Python process of a KFP component replace the shell that starts it; returns the component.

    Platforms send SIGTERM to the first process of the container. The shell would not pass it on to Python.
    """
    command = component.component_spec.implementation.container.command
    command[:] = [word.replace("_KFP_RUNTIME=true python3", "_KFP_RUNTIME=true exec python3") for word in command]
    return component


def with_image(component: Any, image: str) -> Any:
    """Return a copy of a KFP component that runs in another image."""
    copied = copy.deepcopy(component)
    copied.component_spec.implementation.container.image = image
    return copied


def is_in_registry(image: str, is_clusters_own: bool = False) -> bool:
    """Return whether an image's name contains a registry.

    An image without a registry exists only on the machine that built it.

    Args:
        image: Name of the image.
        is_clusters_own: Whether `localhost` or a host with a port counts as a registry, for example a cluster's own.

    Example:
        >>> is_in_registry("tpu-pipelines/python:latest"), is_in_registry("docker.io/me/python:latest")
        (False, True)
    """
    registry, separator, _ = image.partition("/")
    is_local = ":" in registry or registry == "localhost"
    return bool(separator) and (is_clusters_own if is_local else "." in registry)


def is_pinned(image: str) -> bool:
    """Return whether an image's name contains its digest. A tag can move, which would make cached steps stale.

    Example:
        >>> is_pinned("tpu-pipelines/python:latest"), is_pinned("tpu-pipelines/python@sha256:0f")
        (False, True)
    """
    return "@sha256:" in image
