"""Formats and checks of the names of models, versions and aliases, in a registry folder and on Vertex AI."""

import re
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.resource_names import PROJECT_OR_NUMBER

CHAMPION = "champion"


MODEL_DIR, EXPORT_DIR, VERSIONS_DIR = "model", "export", "versions"
SIGNATURE_FILE = "model.sig"  # Signature of the folder that contains it: a version or its export.


# Causes of a move of an alias: the gate of a run, a manual promotion, a rollback.
GATE, HAND, ROLLBACK = "gate", "hand", "rollback"


MODEL_NAME = r"[\w-][\w.-]{0,63}"


ALIAS = r"[a-z]([a-zA-Z0-9-]{0,126}[a-z0-9])?"  # Vertex AI's form.


VERSION_NUMBER = r"\d{4,}"


VERSION_OR_ALIAS = rf"\d+|{ALIAS}"  # 7 is version 0007 of a registry in a folder.


VERTEX_ROOT = rf"projects/{PROJECT_OR_NUMBER}/locations/[a-z0-9-]+/models"


VERTEX_MODEL_NAME = r"[a-z_][a-z0-9_-]{0,62}"


def reference(root: Path | str, model_name: str, version: str) -> str:
    """Return `REGISTRY/MODEL@VERSION_OR_ALIAS`, which `parse_reference` reads."""
    return f"{root}/{model_name}@{version}"


def version_at(place: str) -> tuple[str, str]:
    """Return the model name and the version number from the path of a version or of its export.

    Return ("", "") for other paths.

    Example:
        >>> version_at("runs/registry/shoes/versions/0003/export"), version_at("runs/shoes/export")
        (('shoes', '0003'), ('', ''))
    """
    match = re.search(f"(?:^|/)({MODEL_NAME})/{VERSIONS_DIR}/({VERSION_NUMBER})(?:/{EXPORT_DIR})?$", place)
    return (match[1], match[2]) if match else ("", "")


def version_name(model_name: str, number: str) -> str:
    """Return the value of `Version.name`, `MODEL@NUMBER`."""
    return f"{model_name}@{number}"


def as_label(digest: str) -> str:
    """Return the first 63 characters of a digest, the maximum length of a label on Vertex AI.

    Registries compare the digests of models in this form.
    """
    return digest[:63]


def is_on_vertex(root: str) -> bool:
    """Return whether the root of a registry is a resource name on Vertex AI.

    Example:
        >>> is_on_vertex("projects/my-project/locations/us-west1/models"), is_on_vertex("runs/registry")
        (True, False)
    """
    return re.fullmatch(VERTEX_ROOT, root) is not None


def check_registry(root: str, model_name: str) -> None:
    """Check the root of a registry and the name of a model in it.

    Raises:
        InputError: If the root or the name is invalid.
    """
    if root.startswith("projects/") and "/locations/" in root and not is_on_vertex(root):
        raise InputError(
            f"Cannot use the registry {root!r}: expected a folder, or projects/PROJECT/locations/REGION/models for "
            "Vertex AI, without a model's name or alias. Set these in deploy.model_name and deploy.alias."
        )
    form = MODEL_NAME
    words = "at most 64 letters, digits, '-', '_' and '.'"
    if is_on_vertex(root):
        form = VERTEX_MODEL_NAME
        words = (
            "at most 63 lower-case letters, digits, '-' and '_' on Vertex AI, and no digit or '-' at the start. Set "
            "deploy.model_name"
        )
    if not re.fullmatch(form, model_name):
        raise InputError(f"Cannot use the model name {model_name!r}: expected {words}.")


def check_alias(alias: str, root: str = "") -> str:
    """Check an alias, and return it unchanged. `root` is the root of the registry, needed only for Vertex AI.

    Raises:
        InputError: If the alias is invalid.
    """
    if len(alias) == 1 and is_on_vertex(root):  # model.proto: version_aliases
        raise InputError(
            f"Cannot use the alias {alias!r}: expected at least two characters on Vertex AI. Change deploy.alias."
        )
    if not re.fullmatch(ALIAS, alias):
        raise InputError(
            f"Cannot use the alias {alias!r}: expected lower-case letters, digits and '-', such as 'champion'. Change "
            "deploy.alias."
        )
    return alias
