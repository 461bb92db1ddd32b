"""Open registries and registered versions by path, in a local folder or on Vertex AI."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.reference import (
    MODEL_NAME,
    VERSION_OR_ALIAS,
    VERTEX_MODEL_NAME,
    VERTEX_ROOT,
    is_on_vertex,
)
from tpu_components.core.registry.versions import VERSION_FILE, RegisteredVersion, Registry, Version


class ModelReference(NamedTuple):
    """A reference to a version of a registered model.

    Attributes:
        registry: The model's registry.
        version: Number of the version, or an alias.
    """

    registry: Registry
    version: str

    def find(self) -> RegisteredVersion | None:
        """Return the version, or None for an unset alias. An unknown number raises InputError."""
        return self.registry.find(self.version)


def parse_reference(text: str) -> ModelReference | None:
    """Parse `REGISTRY/MODEL@VERSION_OR_ALIAS` into the registry of a model, and a version number or an alias.

    Return None if the text has another form, is a path in a bucket, or is an existing path.

    Example:
        >>> referred = parse_reference("runs/registry/digits@champion")
        >>> str(referred.registry.root), referred.registry.model_name, referred.version
        ('runs/registry', 'digits', 'champion')
        >>> parse_reference("projects/my-project/locations/us-west1/models/digits@3").version
        '3'
        >>> parse_reference("runs/digits/model")
    """
    if match := re.fullmatch(rf"({VERTEX_ROOT})/({VERTEX_MODEL_NAME})@({VERSION_OR_ALIAS})", text):
        return ModelReference(open_registry(match[1], match[2]), match[3])
    match = re.fullmatch(f"(.+)/({MODEL_NAME})@({VERSION_OR_ALIAS})", text)
    if not match or Location(text).is_remote or Path(text).exists():
        return None
    return ModelReference(ModelRegistry(match[1], match[2]), match[3])


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a registered version: its model's name, its number, its lineage and its folder."""

    model_name: str
    number: str
    lineage: Mapping[str, Any]
    uri: str

    @property
    def name(self) -> str:
        """Model and version, formatted for messages."""
        return f"{self.model_name} {self.number}"


def origin_of(text: str) -> Origin | None:
    """Return the `Origin` of the version that a reference `REGISTRY/MODEL@VERSION_OR_ALIAS` names.

    Return None if the text is not a reference; see `parse_reference`.

    Raises:
        InputError: If the version does not exist, or no version has the alias.
    """
    if not (referred := parse_reference(text)):
        return None
    registry = referred.registry
    version = referred.find()
    if version is None:
        raise InputError(
            f"No version of {registry.model_name!r} in {registry.root} has the alias {referred.version!r}. Use a "
            "version number, or promote a version."
        )
    return origin_of_version(registry.model_name, version)


def origin_of_version(model_name: str, version: RegisteredVersion) -> Origin:
    """Return the `Origin` of a version. The lineage is empty if another tool registered the version."""
    is_ours = storage.exists(f"{version.uri}/{VERSION_FILE}")
    return Origin(model_name, version.number, Version.load(version.uri).lineage if is_ours else {}, version.uri)


def open_registry(root: Path | str, model_name: str) -> Registry:
    """Open the registry of a model.

    Args:
        root: Local folder, or `projects/PROJECT/locations/REGION/models` for Vertex AI.
        model_name: Name of the model.

    Raises:
        InputError: If `root` or `model_name` is invalid.
    """
    if not is_on_vertex(str(root)):
        return ModelRegistry(root, model_name)
    from tpu_components.core.registry.vertex import VertexRegistry  # Imported here, because only this kind needs it.

    return VertexRegistry(str(root), model_name)
