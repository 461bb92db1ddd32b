"""Sketches of the data of registered model versions and of folders of records."""

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.sketches import SKETCH, DataSketch
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.registry.opening import Origin, origin_of


def sketch_at(place: str) -> DataSketch:
    """Return the data sketch of a folder of records, local or in a bucket, or of a registered model version.

    Args:
        place: The folder, or `REGISTRY/MODEL@VERSION_OR_ALIAS`.

    Raises:
        InputError: If the folder or version does not exist, or the version has no sketch.
    """
    origin = origin_of(place)
    return DataSketch.make(Manifest.read_from(place)) if origin is None else sketch_of(origin)


def sketch_of(origin: Origin) -> DataSketch:
    """Return the sketch of the data of a registered model version, from its lineage.

    Raises:
        InputError: If the version has no sketch, or its sketch has an incompatible format.
    """
    try:
        return typed_values.read(origin.lineage.get(SKETCH), DataSketch, SKETCH, any_version=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"Cannot compare data with the data of {origin.name}: this version has no readable sketch of its data "
            f"({error}). The version was registered by another tool, or by an older or newer release of tpu-pipelines. "
            "The next promoted run stores a sketch. Until then, compare with a folder of records."
        ) from error
