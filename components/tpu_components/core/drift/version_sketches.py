"""Sketches of a registered version: of its data, and of its exported formats' predictions."""

from collections.abc import Mapping

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.sketches import ANSWERS, ANSWERS_FILE, INT8, SKETCH, DataSketch
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.files import storage, typed_json
from tpu_components.core.registry.opening import Origin, origin_of
from tpu_components.core.registry.reference import EXPORT_DIR


def sketch_at(place: str) -> DataSketch:
    """Return the data sketch of a folder of records, local or in a bucket, or of a registered version.

    Args:
        place: The folder, or `REGISTRY/MODEL@VERSION_OR_ALIAS`.

    Raises:
        InputError: If the folder or version does not exist, or the version has no sketch.
    """
    origin = origin_of(place)
    return DataSketch.make(Manifest.read_from(place)) if origin is None else sketch_of(origin)


def sketch_of(origin: Origin, name: str = SKETCH) -> DataSketch:
    """Return a sketch from the lineage of a registered version; by default the sketch of its data.

    Args:
        origin: Origin of the version.
        name: Name of the sketch in the lineage.

    Raises:
        InputError: If the registered version has no sketch, or one in an incompatible format.
    """
    what = "data" if name == SKETCH else name
    advice = "The next promoted run stores one" + ("; compare with records until then." if name == SKETCH else ".")
    try:
        return typed_values.read(origin.lineage.get(name), DataSketch, name, any_version=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"Cannot compare {what} with those of {origin.name}: expected a version with a sketch of its {what}. It "
            "has none, or one in another format, because it belongs to another task or tool, or is older than sketches "
            f"({error}). {advice}"
        ) from error


def answers_of(origin: Origin, form: str) -> DataSketch:
    """Return the sketch of predictions on the test split by an exported format of a registered version.

    Args:
        origin: Origin of the version.
        form: Name of the format, for example `int8`.

    Raises:
        InputError: If the version has no sketch of this format.
    """
    uri = f"{origin.uri}/{EXPORT_DIR}/{ANSWERS_FILE}"
    if not storage.exists(uri):
        if form == INT8:
            raise InputError(
                f"Cannot compare predictions in the format int8 with {origin.name}: expected a version with a sketch "
                "of its int8 predictions, received a version that is older than sketches or has another task. The next "
                "promoted run stores such a sketch."
            )
        return sketch_of(origin, ANSWERS)
    sketches: Mapping[str, DataSketch] = typed_json.load(
        uri,
        "a sketch of answers",
        "export_model",
        lambda raw: typed_values.read(raw, Mapping[str, DataSketch], any_version=True),
    )
    if form not in sketches:
        raise InputError(
            f"Cannot compare predictions in the format {form} with {origin.name}, which has no such format: expected "
            f"one of {', '.join(sketches)}. Use the version that made the predictions."
        )
    return sketches[form]
