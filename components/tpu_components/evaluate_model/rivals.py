"""Models with which a model is compared, and the gate's earlier decisions on the test set."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TRAIN, Manifest, ModelInfo
from tpu_components.core.examples.example_ids import load_identities
from tpu_components.core.files.location import Location
from tpu_components.core.metrics.definitions import direction
from tpu_components.core.registry.held_out import FOLDER, HeldOutSet
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import MODEL_DIR, VERSIONS_DIR, as_label
from tpu_components.core.registry.versions import Registry, fetch, fetch_folder
from tpu_components.core.results.evaluation_info import RegisteredChampion
from tpu_components.evaluate_model.params import EvaluateParams


@dataclasses.dataclass(frozen=True)
class Rival:
    """A model with which the challenger is compared: the champion, or the best model that was ever promoted.

    Attributes:
        directory: Folder of the model, written by train_model.
        number: Number of the model's version in the registry. Empty without a registry.
        digest: Digest of the model. Empty without a registry.
        place: Folder for the decisions on test sets, next to the versions in the registry. Empty without a registry.
        registry: The registry, or None for a model that is only a folder.
        alias: Alias that the champion has in the registry. Empty if it has none.
        whose: Words before the model's metric in the gate's reasons, for example `the champion's`.
    """

    directory: Path
    number: str = ""
    digest: str = ""
    place: Location = dataclasses.field(default=Location(), compare=False)
    registry: Registry | None = dataclasses.field(default=None, compare=False)
    alias: str = dataclasses.field(default="", compare=False)
    whose: str = "the champion's"


def load_rivals(
    params: EvaluateParams, manifest: Manifest, records_dir: Path, digest: str, scratch: Path
) -> tuple[list[Rival], HeldOutSet | None]:
    """Return the rival models (the champion first) and the gate's earlier decisions on the test set.

    Args:
        params: The champion and the rules of the gate.
        manifest: The data set.
        records_dir: Folder that create_tfrecords wrote.
        digest: Digest of the challenger.
        scratch: Folder for the files of models on gs://.

    Returns:
        The rivals and the gate's earlier decisions. Without a champion, the list of rivals is empty, and the decisions
        are None. The decisions are also None if the gate does not count them; see `find_held_out`.
    """
    champion = find_champion(params.champion, digest, scratch)
    if champion is None:
        return [], None
    load_matching_info(champion.directory, manifest, "champion").check_files(champion.directory)
    held_out = find_held_out(params, records_dir, digest, champion)
    best = _find_best(params, manifest, digest, champion, held_out, scratch) if held_out else None
    return [champion, best] if best else [champion], held_out


def find_champion(champion: str, digest: str, scratch: Path) -> Rival | None:
    """Return the model that `EvaluateParams.champion` refers to.

    Return None if `champion` is empty, or if the alias has no version yet, as before the first run.

    Args:
        champion: A folder, local or on gs://, or `REGISTRY/MODEL@VERSION_OR_ALIAS`, where REGISTRY may be
            `projects/PROJECT/locations/REGION/models`. Empty if there is no champion.
        digest: Digest of the challenger. If the challenger is the champion, the previous champion is returned.
        scratch: Folder for the files of a model on gs://.

    Raises:
        InputError: If the model cannot be read, or a file of a version was changed after registration.
    """
    if not champion:
        return None
    if (named := parse_reference(champion)) is None:
        return Rival(fetch_folder(champion, scratch))
    registry = named.registry
    version = registry.champion(named.version, digest)
    if version is None:
        return None
    versions = version.uri.parent
    place = versions.parent if versions.name == VERSIONS_DIR else versions
    directory = fetch(version, MODEL_DIR, scratch)
    alias = registry.alias_of(named.version)
    return Rival(directory, version.number, version.model_digest, place.child(FOLDER), registry, alias)


def _find_best(
    params: EvaluateParams, manifest: Manifest, digest: str, champion: Rival, held_out: HeldOutSet, scratch: Path
) -> Rival | None:
    """Return the best model that was ever promoted, by the first metric in `max_regression` with a margin above 0.

    Models that were rolled back or deleted do not count. The result is None if the best model is the champion or the
    challenger, or if it is unknown or does not match the data set.
    """
    metric = next((name for name, margin in params.max_regression.items() if margin), "")
    registry = champion.registry
    if registry is None or not metric:
        return None
    for model in held_out.rank_promoted(metric, direction(metric)):
        if model in map(as_label, (digest, champion.digest)):
            return None
        number = registry.number_of(model)
        if number and not (champion.alias and registry.find_rollback(number, champion.alias)):
            break
    else:
        return None
    (scratch / "best").mkdir()
    version = registry.version(number)
    directory = fetch(version, MODEL_DIR, scratch / "best")
    if not ModelInfo.load(directory).understands(manifest):
        return None
    whose = f"that of version {number}, the best that was promoted:"
    return dataclasses.replace(champion, directory=directory, number=number, digest=version.model_digest, whose=whose)


def find_held_out(params: EvaluateParams, records_dir: Path, digest: str, champion: Rival) -> HeldOutSet | None:
    """Return the gate's earlier decisions on this test set, as recorded in the champion's registry.

    Return None if there is no registry, if the split is the training split, or if the records have no example IDs.
    """
    if not champion.place or params.split == TRAIN:
        return None
    identities = load_identities(records_dir, params.split)
    if identities is None and params.test_decisions > 1:
        raise InputError(
            f"Cannot use test_decisions={params.test_decisions}, because decisions on this test set cannot be counted: "
            f"an older version wrote the records in {records_dir} without the IDs of the examples. Run "
            "create_tfrecords again, or set test_decisions=1."
        )
    return None if identities is None else HeldOutSet.find(champion.place, identities, digest)


def describe_champion(named: str, rivals: Sequence[Rival]) -> RegisteredChampion | None:
    """Return the version and digest of the registered champion. Both are empty if there is no champion.

    Return None if no registry was queried.

    Args:
        named: `EvaluateParams.champion`.
        rivals: The models with which the model is compared, the champion first.
    """
    if parse_reference(named) is None:
        return None
    return RegisteredChampion(rivals[0].number, rivals[0].digest) if rivals else RegisteredChampion("", "")


def load_matching_info(model_dir: Path, manifest: Manifest, role: str) -> ModelInfo:
    """Load the metadata of a model, and check that the model matches the data set.

    `role`, which is `model` or `champion`, names the model in the error message.

    Raises:
        InputError: If the model does not match the data set.
    """
    info = ModelInfo.load(model_dir)
    # A champion for texts may have another vocabulary than the data set.
    if not (info.understands(manifest) if role == "champion" else info.fits(manifest)):
        raise InputError(
            (
                f"The {role} in {model_dir} does not fit the data set: {info.compare_with(manifest)}. Evaluate it on "
                "a data set with the same input and classes, or train a new model"
            )
            + (" with gate.champion left empty and another deploy.model_name." if role == "champion" else ".")
        )
    return info
