"""Names of the container images in which the steps and the model server run."""

import copy
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from tpu_components.core.base.errors import InputError

# `make image` and `make image-beam` build these images, which platforms cannot pull. Components use them by default.
LOCAL_IMAGE = "tpu-pipelines/python:latest"
LOCAL_BEAM_IMAGE = "tpu-pipelines/beam:latest"
IMAGE_VARIABLES = {  # Environment variable of each field of `Images`.
    "training": "TPU_PIPELINES_IMAGE",
    "other_steps": "TPU_PIPELINES_STEPS_IMAGE",
    "beam": "TPU_PIPELINES_BEAM_IMAGE",
    "serving": "TPU_PIPELINES_SERVING_IMAGE",
}
# https://github.com/distribution/reference/blob/main/regexp.go, and the OCI image-spec's descriptor.md for digests.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE_NAME = re.compile(rf"(?:[A-Za-z0-9.-]+(?::\d+)?/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Images:
    """Container images of a run.

    Name each image by its digest (`…@sha256:…`). A tag can move to another image, so the results of cached steps could
    come from an outdated image.

    Attributes:
        training: Image of preflight and training. It is also the image of evaluation if that step runs on a TPU or GPU,
            and of all other steps if TPU_PIPELINES_STEPS_IMAGE is not set.
        other_steps: Smaller image of the steps that need neither a TPU nor the TPU compiler. If empty, these steps use
            the image `training`.
        beam: Image of Beam's workers and of the step that starts them. It is separate because Beam conflicts with
            libraries that other steps need.
        serving: Image of the model server.
    """

    training: str = LOCAL_IMAGE
    other_steps: str = ""
    beam: str = LOCAL_BEAM_IMAGE
    serving: str = "tpu-pipelines/serving:latest"

    @property
    def steps(self) -> str:
        """Image of the steps that need neither a TPU nor the TPU compiler."""
        return self.other_steps or self.training


def load_images(environment: Mapping[str, str]) -> Images:
    """Read the names of the images from environment variables. An empty variable counts as not set.

    Example:
        >>> load_images({"TPU_PIPELINES_IMAGE": "docker.io/me/python:1"}).steps
        'docker.io/me/python:1'

    Raises:
        InputError: If the name of an image is malformed.
    """
    named = {field: environment.get(variable, "") for field, variable in IMAGE_VARIABLES.items()}
    for field, image in named.items():
        if image:
            check_image_name(image, IMAGE_VARIABLES[field])
    images = Images(**{field: image for field, image in named.items() if image})
    return dataclasses.replace(images, other_steps="") if images.other_steps == images.training else images


def in_place_of_shell(component: Any) -> Any:
    """Change a KFP component so that SIGTERM reaches its Python process, and return the component.

    Platforms send SIGTERM only to the first process of a container. In a KFP component, this is a shell, which starts
    Python and does not pass the signal on. After the change, the shell replaces itself with Python (`exec`).
    """
    command = component.component_spec.implementation.container.command
    command[:] = [word.replace("_KFP_RUNTIME=true python3", "_KFP_RUNTIME=true exec python3") for word in command]
    return component


def with_image(component: Any, image: str) -> Any:
    """Return a copy of a KFP component that runs in another image.

    Args:
        component: The component; it is not changed.
        image: Name of the image, preferably with its digest, such as `docker.io/me/python@sha256:…`.
    """
    copied = copy.deepcopy(component)
    copied.component_spec.implementation.container.image = image
    return copied


def check_image_name(image: str, setting: str = "the image") -> None:
    """Check that the name of an image is well-formed. The registry is not contacted.

    Args:
        image: Name of the image, with a tag, a digest, both or neither.
        setting: Name of the setting in error messages, for example the environment variable that contains `image`.

    Raises:
        InputError: If the name is empty or malformed.
    """
    name, separator, digest = image.partition("@")
    if not _IMAGE_NAME.fullmatch(name):
        raise InputError(
            f"Expected {setting} as REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST, in lower case. "
            f"Received: {image!r}."
        )
    if separator and not _DIGEST.fullmatch(digest):
        raise InputError(
            f"Expected {setting} with a digest of `sha256:` and 64 hexadecimal digits. Received: {image!r}. Copy the "
            "digest that `docker push` prints."
        )


def is_in_registry(image: str, is_clusters_own: bool = False) -> bool:
    """Return whether an image's name contains a registry.

    Without a registry in its name, an image counts as one that exists only on the machine that built it.

    Args:
        image: Name of the image.
        is_clusters_own: Whether a registry inside the cluster is accepted, too. Its address is `localhost` or has a
            port, such as `registry:5000`.

    Example:
        >>> is_in_registry("tpu-pipelines/python:latest"), is_in_registry("docker.io/me/python:latest")
        (False, True)
    """
    registry, separator, _ = image.partition("/")
    is_local = ":" in registry or registry == "localhost"
    return bool(separator) and (is_clusters_own if is_local else "." in registry)


def is_pinned(image: str) -> bool:
    """Return whether an image's name contains its digest.

    A tag can move to another image, which would make the results of cached steps out of date.

    Example:
        >>> is_pinned("tpu-pipelines/python:latest"), is_pinned("tpu-pipelines/python@sha256:" + 64 * "0")
        (False, True)
    """
    return "@sha256:" in image
