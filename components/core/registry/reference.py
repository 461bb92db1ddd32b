"""How a model, its versions and its aliases are named, in a folder and on Vertex AI."""

import re
from pathlib import Path

from tpu_components.core.base.errors import InputError

CHAMPION = "champion"


MODEL_DIR, EXPORT_DIR, VERSIONS_DIR = "model", "export", "versions"
SIGNATURE_FILE = "model.sig"  # Of the folder that it lies in: a version, and its export.


# How an alias came to move: a run's gate said so, somebody said so, or somebody took the last promotion back.
GATE, HAND, ROLLBACK = "gate", "hand", "rollback"


MODEL_NAME = r"[\w-][\w.-]{0,63}"


ALIAS = r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9])?"  # What Vertex AI takes.


VERSION_NUMBER = r"\d{4,}"


VERTEX_ROOT = r"projects/[^/@]+/locations/[a-z0-9-]+/models"


VERTEX_MODEL_NAME = r"[a-z_][a-z0-9_-]{0,62}"


def reference(root: Path | str, model_name: str, version: str) -> str:
    """Return `REGISTRY/MODEL@VERSION_OR_ALIAS`, which goes where a folder may be named too; see `parse_reference`."""
    return f"{root}/{model_name}@{version}"


def version_name(model_name: str, number: str) -> str:
    """Return the name that a version registers itself under, `MODEL@NUMBER`; see `Version.name`."""
    return f"{model_name}@{number}"


def is_on_vertex(root: str) -> bool:
    """Return whether a registry is Vertex AI's.

    Example:
        >>> is_on_vertex("projects/my-project/locations/us-west1/models"), is_on_vertex("runs/registry")
        (True, False)
    """
    return re.fullmatch(VERTEX_ROOT, root) is not None


def check_registry(root: str, model_name: str) -> None:
    """Check that a registry can be one, and have a model of this name.

    Raises:
        InputError: If it cannot.
    """
    if root.startswith("projects/") and "/locations/" in root and not is_on_vertex(root):
        raise InputError(
            f"Cannot use the registry {root!r}: expected a folder, or projects/PROJECT/locations/REGION/models for "
            "Vertex AI's. The model's name and version do not belong there: deploy.model_name, deploy.alias."
        )
    if is_on_vertex(root) and not re.fullmatch(VERTEX_MODEL_NAME, model_name):
        raise InputError(
            f"Cannot use the model name {model_name!r} on Vertex AI: expected lower-case letters, digits, '-' and '_', "
            "not a digit or '-' first, at most 63. Set deploy.model_name."
        )


def check_model_name(name: str) -> str:
    """Return a model's name, if it can be one.

    Raises:
        InputError: If it cannot.
    """
    if not re.fullmatch(MODEL_NAME, name):
        raise InputError(f"Cannot use the model name {name!r}: expected letters, digits, '-', '_' and '.', at most 64.")
    return name


def check_alias(alias: str) -> str:
    """Return an alias, if it can be one.

    Raises:
        InputError: If it cannot.
    """
    if not re.fullmatch(ALIAS, alias):
        raise InputError(f"Cannot use the alias {alias!r}: expected lower-case letters, digits and '-', as 'champion'.")
    return alias
