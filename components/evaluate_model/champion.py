"""Which model to beat: a folder, or a version of a registry."""

import dataclasses
from pathlib import Path

from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import MODEL_DIR
from tpu_components.core.registry.versions import fetch, fetch_folder
from tpu_components.core.results.evaluation_info import RegisteredChampion


@dataclasses.dataclass(frozen=True)
class Champion:
    """A model to beat.

    Attributes:
        directory: Folder of the champion, as train_model wrote it; None if there is none.
        registered: Answer of the registry; None where none was asked.
    """

    directory: Path | None
    registered: RegisteredChampion | None = None


def find_champion(champion: str, digest: str, scratch: Path) -> Champion:
    """Return the model that `EvaluateParams.champion` names.

    Args:
        champion: A folder, here or on gs://, or `REGISTRY/MODEL@VERSION_OR_ALIAS`, where REGISTRY may be
            `projects/PROJECT/locations/REGION/models`; empty for none.
        digest: The challenger's. Where it is the champion itself, it meets the one which it beat.
        scratch: Gets the files of a model on gs://.

    Raises:
        InputError: If what it names cannot be read, or a file of a version is not as it was registered. An alias that
            stands nowhere, as before the first run, is none.
    """
    if not champion:
        return Champion(None)
    if (named := parse_reference(champion)) is None:
        return Champion(fetch_folder(champion, scratch))
    registry, version = named
    champion_version = registry.champion(version, digest)
    if champion_version is None:
        return Champion(None, RegisteredChampion("", ""))
    directory = fetch(champion_version, MODEL_DIR, scratch)
    return Champion(directory, RegisteredChampion(champion_version.number, champion_version.model_digest))
