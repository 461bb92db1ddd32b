"""Looks up an image in its registry: digest, platforms and Python version."""

import dataclasses
import hashlib
import re
from typing import Any

from tpu_components.core.base.container_images import is_in_registry, is_pinned
from tpu_components.core.base.retries import MissingError
from tpu_components.core.files.resource_names import COMPUTE_NAME, PROJECT
from tpu_pipelines.platforms.findings import CannotAskError, LackError, ShellCommand
from tpu_pipelines.platforms.google_apis import TIMEOUT_SECONDS, GoogleApis

PLATFORM = "linux/amd64"  # Platform of all TPU hosts on Vertex AI and GKE.
# https://distribution.github.io/distribution/spec/manifest-v2-2 and https://github.com/opencontainers/image-spec.
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_GOOGLES = re.compile(r"(.+-docker\.pkg\.dev|(.+\.)?gcr\.io)")
_REPOSITORY = re.compile(
    rf"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>{PROJECT})/(?P<name>{COMPUTE_NAME})/.+"
)


@dataclasses.dataclass(frozen=True)
class Image:
    """An image in a registry.

    Attributes:
        digest: Digest to which the image's name currently refers, for example `sha256:…`.
        platforms: Operating systems and CPU architectures for which the image is built, for example `linux/amd64`.
        python: Version of Python: the image's variable PYTHON_VERSION, which Docker's official images set. Empty if it
            is not set.
    """

    digest: str
    platforms: tuple[str, ...]
    python: str = ""


def repository_of(image: str) -> tuple[str, str, str] | None:
    """Return the project, location and name of an image's repository in Artifact Registry.

    Return None if the image is in another registry.

    Example:
        >>> repository_of("europe-docker.pkg.dev/my-project/images/steps:1")
        ('my-project', 'europe', 'images')
    """
    match = _REPOSITORY.fullmatch(image)
    return (match["project"], match["location"], match["name"]) if match else None


def find_image(image: str, apis: GoogleApis) -> Image:
    """Look up an image in its registry, without pulling it.

    The function reads manifests and blobs with GET requests: https://distribution.github.io/distribution/spec/api.

    Raises:
        MissingError: If the registry does not have the image.
        CannotAskError: If the registry does not respond.
    """
    host, _, rest = image.partition("/")
    path, separator, reference = rest.partition("@")
    if not separator:
        path, _, reference = rest.partition(":")
    if host == "docker.io":
        host = "registry-1.docker.io"
        path = path if "/" in path else f"library/{path}"

    def get(what: str) -> Any:
        return _get(apis, host, f"v2/{path}/{what}", image)

    response = get(f"manifests/{reference or 'latest'}")
    variables: list[str] = []
    try:
        manifest = response.json()
        if "manifests" in manifest:
            entries = [entry.get("platform", {}) for entry in manifest["manifests"]]
        elif "config" in manifest:
            entries = [get(f"blobs/{manifest['config']['digest']}").json()]
            variables = entries[0].get("config", {}).get("Env") or []
        else:
            raise CannotAskError(f"{host} returned a manifest of unknown type: {manifest.get('mediaType', 'none')}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CannotAskError(f"{host} does not respond like a registry") from error
    digest = reference if separator else f"sha256:{hashlib.sha256(response.content).hexdigest()}"
    platforms = dict.fromkeys(f"{entry.get('os')}/{entry.get('architecture')}" for entry in entries)
    platforms.pop("unknown/unknown", None)  # The platform of attestations.
    python = dict(variable.partition("=")[::2] for variable in variables).get("PYTHON_VERSION", "")
    return Image(digest, tuple(platforms), python)


def look_at_image(
    image: str, apis: GoogleApis, variable: str, is_clusters_own: bool = False, least_python: str = ""
) -> str:
    """Check that a registry has an image for TPU hosts. Return the result as a sentence.

    The sentence contains the image's platform and, for a tag, the digest to which the tag currently refers.

    Args:
        image: Name of the image.
        apis: Client of Google Cloud's APIs, for Google's registries.
        variable: Environment variable that names the image.
        is_clusters_own: Whether a registry host without a domain is allowed, such as a registry inside the cluster.
        least_python: Lowest version of Python that the machine supports, such as `3.12`. Empty means any version.

    Raises:
        LackError: If the image does not exist, is for another platform, or has an older Python.
        CannotAskError: If the registry does not respond, or rejects the request.
    """
    build = f"run `make image` and docker push, and set {variable}=…@sha256:…"
    if not is_in_registry(image, is_clusters_own):
        raise LackError(f"platforms cannot pull {image}, because its name contains no registry", build)
    try:
        known = find_image(image, apis)
    except MissingError as error:
        raise LackError(f"{image} does not exist: {error}", build) from error
    if PLATFORM not in known.platforms:
        raise LackError(
            f"{image} is for {', '.join(known.platforms) or 'no platform'}, but TPU hosts need {PLATFORM}",
            f"run docker build --platform={PLATFORM} and docker push, and set {variable}=…@sha256:…",
        )
    if known.python and _version(known.python) < _version(least_python):
        raise LackError(
            f"{image} has Python {known.python}, but the machine requires {least_python} or later",
            f"build it on a newer base, with make image BASE=python:{least_python}-slim, or use another machine",
        )
    tag = "" if is_pinned(image) else f"; its tag currently refers to {known.digest}"
    is_unsaid = least_python and not known.python
    unsaid = f"; its Python version is unknown, but {least_python} or later is required" if is_unsaid else ""
    return f"{image}, {PLATFORM}{tag}{unsaid}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _get(apis: GoogleApis, host: str, path: str, image: str) -> Any:
    """Send a GET request to a registry. Only Google's registries get the user's credentials."""
    headers = {"Accept": ", ".join(_MANIFESTS)}
    if _GOOGLES.fullmatch(host):
        return apis.send("GET", host, path, headers=headers)
    import requests

    # Like Docker, use HTTP for a registry on this machine or in a cluster.
    url = f"{'http' if ':' in host else 'https'}://{host}/{path}"
    try:
        response = requests.get(url, headers=headers, timeout=TIMEOUT_SECONDS)
    except requests.RequestException as error:
        raise CannotAskError(f"{host} does not respond: {error}") from error
    if response.status_code == 404:
        raise MissingError(f"{host} has no image with this name")
    if not response.ok:
        raise CannotAskError(
            f"{host} does not allow anonymous access: {response.status_code} {response.reason}",
            str(ShellCommand(("docker", "manifest", "inspect", image))),
        )
    return response
