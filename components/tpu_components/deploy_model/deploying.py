"""Registers an export as a version, checks the health of the version, and only then moves the alias."""

import contextlib
import dataclasses
import functools
import tempfile
from pathlib import Path

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.sketches import SKETCH, DataSketch
from tpu_components.core.examples.artifacts import CODE_FILE, DEPLOYMENT_FILE, PREDICTIONS_FILE, Manifest, ModelInfo
from tpu_components.core.examples.interface import CorpusInput
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.opening import open_registry
from tpu_components.core.registry.reference import SIGNATURE_FILE, version_name
from tpu_components.core.registry.signing import try_keys, verify_version
from tpu_components.core.registry.versions import RegisteredVersion, Registry, VersionFacts, model_digest
from tpu_components.core.registry.vertex import VertexRegistry
from tpu_components.core.results.evaluation_info import Evaluation
from tpu_components.core.results.export_info import ExportInfo
from tpu_components.deploy_model.card import write_card
from tpu_components.deploy_model.health_check import HealthCheck, predict_in_fresh_process
from tpu_components.deploy_model.params import PREFLIGHT, DeployParams, DeployResult
from tpu_components.deploy_model.vertex import VertexTarget

_STEP = "deploy_model"


def deploy_model(
    params: DeployParams,
    records_dir: str | Path,
    model_dir: str | Path,
    export_dir: str | Path,
    evaluation_dir: str | Path,
    output: str | Path,
    registry: Registry | None = None,
) -> DeployResult:
    """Register a model that passed the gate as a version, and make it the champion.

    1. Register the export, and sign it if there is a signing key. If a version with the same model and export exists,
       use that version.
    2. Read the version back. If there is a verification key, verify the version's signatures.
    3. Health check: predict examples with the registered export in a new process, and compare the predictions with the
       evaluation.
    4. If an endpoint is configured, deploy the version to it and repeat the health check there.
    5. If the champion is still the version with which the model was compared, move the alias. Otherwise, fail.

    If the step is killed at any moment and run again, the result is the same. If one of the actions 2 to 5 fails, the
    version stays registered, and the alias and the endpoint's traffic stay as they were.

    Args:
        params: Registry, endpoint, and checks.
        records_dir: Folder that create_tfrecords wrote.
        model_dir: Folder that train_model wrote.
        export_dir: Folder that export_model wrote.
        evaluation_dir: Folder that evaluate_model wrote.
        output: Folder for deployment.json, written atomically.
        registry: Registry of the model. If None, `params.registry` is opened.

    Raises:
        InputError: If the gate has not passed this model, the export belongs to another model, a folder or the registry
            is damaged, the champion has changed since the evaluation, this version was rolled back, or its signatures
            are invalid.
        PlatformError: If the health check fails.
    """
    records_dir = Location(records_dir).as_path()
    model_dir = Location(model_dir).as_path()
    export_dir = Location(export_dir).as_path()
    evaluation_dir = Path(evaluation_dir)
    output = Location(output).as_path()
    storage.require_output(output, DEPLOYMENT_FILE)
    try_keys(params.signing_key, params.verify_key)
    registry = registry or open_registry(params.registry, params.model_name)
    target = VertexTarget(params, registry) if isinstance(registry, VertexRegistry) else None
    manifest = Manifest.load(records_dir)
    if params.endpoint and isinstance(manifest.input, CorpusInput):
        raise InputError(
            f"Cannot deploy a language model to the endpoint {params.endpoint!r}: expected an image or text "
            "model, because the health check of an endpoint supports only these. Leave deploy.endpoint out. The model "
            "is registered even without an endpoint."
        )
    export = ExportInfo.load(export_dir)
    if params.endpoint and (reason := export.left_out.get("float")):
        raise InputError(
            f"Cannot deploy {export_dir} to the endpoint {params.endpoint!r}: the serving image loads the float "
            f"LiteRT file, which was not exported, because {reason}. Leave deploy.endpoint out; the model is "
            "registered even without an endpoint. To find this out before training, set export.required=[float]."
        )
    evaluation = Evaluation.load(evaluation_dir)
    _check_evaluation(evaluation, evaluation_dir, model_dir, manifest)
    if export.model_digest not in ("", evaluation.model.digest):
        raise InputError(
            f"Cannot deploy {export_dir}, because it is an export of another model: expected the digest "
            f"{evaluation.model.digest[:16]}… of {model_dir}, received {export.model_digest[:16]}…. Run export_model "
            f"with {model_dir}."
        )
    champion = evaluation.registered_champion.digest if evaluation.registered_champion else None
    expected = _evaluated_outputs(evaluation_dir, manifest)
    model = ModelInfo.load(model_dir)
    training = model.training
    initial = training.get("initial_model_digest", "")
    lineage = {
        "dataset": {"source": manifest.source, "fingerprint": manifest.fingerprint},
        "split": evaluation.split,
        SKETCH: dataclasses.asdict(DataSketch.make(manifest)),
        **({"initial_model": {"name": training["initial_model"], "digest": initial}} if initial else {}),
        **params.lineage,
        **({PREFLIGHT: params.preflight} if params.preflight else {}),
    }
    parent = registry.number_of(champion or "")
    reasons = [str(rule) for rule in evaluation.gate.reasons]
    has_code = (model_dir / CODE_FILE).is_file()
    card = write_card(params, manifest, model, evaluation, export, has_code)
    facts = VersionFacts(metrics=evaluation.metrics, reasons=reasons, lineage=lineage, parent=parent, card=card)
    version: RegisteredVersion
    if target:
        version = target.register(model_dir, export_dir, **facts)
    else:
        assert isinstance(registry, ModelRegistry)
        version = registry.register(model_dir, export_dir, **facts, signing_key=params.signing_key)
    check = HealthCheck(params, version, records_dir, manifest, evaluation.split, expected)
    with tempfile.TemporaryDirectory(prefix="registered-") as scratch:
        _require_signatures(params, version, Path(scratch))
        health = check(functools.partial(predict_in_fresh_process, version, Path(scratch)))
    serving = target.serving(version, check, champion) if target else contextlib.nullcontext("")
    with serving as endpoint:
        move = registry.promote(version.number, params.alias, "; ".join(reasons), champion)
    result = DeployResult(
        registry=str(registry.root),
        model_name=registry.model_name,
        version=version.number,
        version_dir=str(version.uri),
        alias=params.alias,
        previous=move.previous,
        health_check=health,
        endpoint=endpoint,
    )
    with storage.staged_directory(output) as staged:
        result.save(staged)
    progress.say(
        _STEP,
        (
            f"{registry.model_name} version {version.number} predicted {health.num_examples} {manifest.input.plural} "
            f"correctly and is the {params.alias}"
        )
        + (f" instead of {move.previous}" if move.previous else "")
        + (f"; {endpoint} serves this version" if endpoint else ""),
    )
    return result


def _require_signatures(params: DeployParams, version: RegisteredVersion, scratch: Path) -> None:
    """Verify the signatures of a version if there is a key. Log a line if the version is unsigned."""
    if params.verify_key:
        name = params.model_name if params.is_on_vertex else version_name(params.model_name, version.number)
        verify_version(storage.localize(version.uri, scratch), params.verify_key, version.uri, name)
    elif params.signing_key and not storage.exists(f"{version.uri}/{SIGNATURE_FILE}"):
        progress.say(
            _STEP,
            f"{params.model_name} version {version.number} was registered earlier without a signature and stays "
            "unsigned, because this step signs only versions that it writes",
        )


def _check_evaluation(evaluation: Evaluation, directory: Path, model_dir: Path, manifest: Manifest) -> None:
    """Raise InputError unless the gate has passed this model on these records."""
    if not evaluation.gate.promote:
        raise InputError(
            f"Cannot deploy {model_dir}: the gate did not pass it ({evaluation.gate.decisive}). Train a better model."
        )
    for what, expected, received in (
        ("model", evaluation.model.digest, model_digest(model_dir)),
        ("data set", evaluation.dataset_fingerprint, manifest.fingerprint),
    ):
        if expected != received:
            raise InputError(
                f"Cannot deploy {model_dir}: the evaluation in {directory} belongs to another {what}: expected "
                f"{expected[:16]}…, received {received[:16]}…. Run evaluate_model with this {what}."
            )


def _evaluated_outputs(evaluation_dir: Path, manifest: Manifest) -> np.ndarray:
    """Return the outputs of the evaluated model, float32[examples, outputs], in the order of the records."""
    path = evaluation_dir / PREDICTIONS_FILE
    try:
        return read_arrays(path, only=(name := manifest.interface.task.answer), is_own=True)[name]
    except (ValueError, KeyError) as error:
        raise InputError(f"Cannot read {path}: {error!r}. Run evaluate_model again.") from error
