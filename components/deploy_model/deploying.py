"""Registers an export, lets it answer, and only then moves the alias."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from components import progress, records, storage
from components.artifacts import DEPLOYMENT_FILE, EVALUATION_FILE, PREDICTIONS_FILE, Manifest
from components.deploy_model.params import DeployParams, DeployResult
from components.errors import InputError
from components.registry import ModelRegistry, Version, model_digest

_STEP = "deploy_model"
_HEALTH_CHECK_SECONDS = 600  # Loading the largest model and answering takes far less.


def deploy_model(
    params: DeployParams, records_dir: Path, model_dir: Path, export_dir: Path, evaluation_dir: Path, output: Path
) -> DeployResult:
    """Register a promoted model as a version and make it the champion.

    1. Register. The same model and export again are the same version.
    2. Health check: a fresh process answers examples with the registered export, as it was evaluated.
    3. Move the alias, if the champion is still the one that the model was compared with.

    Killed at any moment and run again, it gives the same. When 2 or 3 fails, the version stays and the alias does too.

    Args:
        params: Where to register and what to check.
        records_dir: What create_tfrecords wrote.
        model_dir: What train_model wrote.
        export_dir: What export_model wrote.
        evaluation_dir: What evaluate_model wrote.
        output: Gets deployment.json; appears whole or not at all.

    Raises:
        InputError: If the gate has not said yes to this very model, a folder or the registry is damaged, the champion
            has changed since, or this version was rolled back.
        RuntimeError: If the health check fails.
    """
    storage.require_output(output, DEPLOYMENT_FILE)
    registry = ModelRegistry(params.registry, params.model_name)
    manifest = Manifest.load(records_dir)
    evaluation = _Evaluation.load(evaluation_dir)
    evaluation.check(model_dir, manifest)
    version = registry.register(
        model_dir,
        export_dir,
        metrics=evaluation.metrics,
        reasons=evaluation.reasons,
        lineage={
            "dataset": {"source": manifest.source, "fingerprint": manifest.fingerprint},
            "split": evaluation.split,
            **params.lineage,
        },
        parent=registry.number_of(evaluation.against or ""),
    )
    health = _check_health(params, version, records_dir, manifest, evaluation)
    move = registry.promote(version.number, params.alias, "; ".join(evaluation.reasons), evaluation.against)
    result = DeployResult(
        registry=str(registry.root),
        model_name=registry.model_name,
        version=version.number,
        version_dir=str(version.directory),
        alias=params.alias,
        previous=move.previous,
        health_check=health,
    )
    with storage.staged_directory(output) as staged:
        storage.write_json(staged / DEPLOYMENT_FILE, dataclasses.asdict(result))
    progress.say(
        _STEP,
        f"{registry.model_name} version {version.number} answered {health['num_examples']} {manifest.input.plural} "
        f"and is the {params.alias}" + (f", as {move.previous} was before" if move.previous else ""),
    )
    return result


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """What evaluate_model wrote, as far as it matters here."""

    directory: Path
    promote: bool
    reasons: Sequence[str]
    metrics: Mapping[str, float]
    split: str
    model_digest: str
    dataset_fingerprint: str
    against: str | None  # As ModelRegistry.promote takes it.

    @classmethod
    def load(cls, directory: Path) -> Self:
        path = directory / EVALUATION_FILE
        try:
            raw = json.loads(path.read_bytes())
            champion = raw["registered_champion"]
            return cls(
                directory=directory,
                promote=raw["gate"]["promote"],
                reasons=raw["gate"]["reasons"],
                metrics={name: value for name, value in raw["challenger"].items() if isinstance(value, int | float)},
                split=raw["split"],
                model_digest=raw["model"]["digest"],
                dataset_fingerprint=raw["dataset_fingerprint"],
                against=None if champion is None else champion["digest"],
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"Cannot read {path}: expected what evaluate_model writes, received something else ({error!r}). Run "
                "evaluate_model again."
            ) from error

    def check(self, model_dir: Path, manifest: Manifest) -> None:
        """Refuse a model to which the gate has not said yes, itself and on these records."""
        if self.promote is not True:
            raise InputError(
                f"Refused to deploy {model_dir}: the gate said no ({'; '.join(self.reasons)}). Train a better model."
            )
        for what, expected, received in (
            ("model", self.model_digest, model_digest(model_dir)),
            ("data set", self.dataset_fingerprint, manifest.fingerprint),
        ):
            if expected != received:
                raise InputError(
                    f"Refused to deploy {model_dir}: the evaluation in {self.directory} is of another {what}: expected "
                    f"{expected[:16]}…, received {received[:16]}…. Run evaluate_model with this one."
                )

    def answers(self, manifest: Manifest) -> np.ndarray:
        """What the evaluated model answered, float32[examples, outputs], in the order of the records."""
        path = self.directory / PREDICTIONS_FILE
        try:
            with np.load(path) as predictions:
                return predictions[manifest.interface.task.answer]
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"Cannot read {path}: {error!r}. Run evaluate_model again.") from error


def _check_health(
    params: DeployParams, version: Version, records_dir: Path, manifest: Manifest, evaluation: _Evaluation
) -> dict[str, float]:
    """Examples spread evenly over the split: the registered export must answer as the model did that was evaluated."""
    expected = evaluation.answers(manifest)
    indices, inputs = records.spread_inputs(records_dir, manifest, evaluation.split, params.health_check_examples)
    failed = f"The health check of version {version.number} of {params.model_name!r} failed, so no alias moves:"
    try:
        answers = _answers_in_fresh_process(version.export_dir, inputs)
    except RuntimeError as error:
        raise RuntimeError(f"{failed} {error}. Run export_model and deploy_model again.") from error
    scale = manifest.interface.std or 1.0
    difference = float((np.abs(answers.astype(np.float64) - expected[indices]) / scale).max())
    kind = "number, in standard deviations," if manifest.interface.std else "probability"
    if not difference <= params.health_check_tolerance:  # Written so that NaN fails.
        raise RuntimeError(
            f"{failed} of {len(indices)} {manifest.input.plural}, a {kind} differs by {difference:.2e} from what "
            f"was evaluated; expected at most {params.health_check_tolerance:.2e}. Is it the export of another "
            "model? Run export_model and deploy_model again."
        )
    return {"num_examples": len(indices), "max_difference": difference}


def _answers_in_fresh_process(export_dir: Path, inputs: np.ndarray) -> np.ndarray:
    with tempfile.TemporaryDirectory(prefix="health-check-") as work:
        given, answers = Path(work) / "inputs.npy", Path(work) / "answers.npy"
        np.save(given, inputs)
        command = [sys.executable, "-m", f"{__package__}.health_check", str(export_dir), str(given), str(answers)]
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_HEALTH_CHECK_SECONDS)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(
                f"a fresh process got no answer (exit code {error.returncode}): {error.stderr.strip()[-2000:]}"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"a fresh process got no answer within {_HEALTH_CHECK_SECONDS} s") from error
        return np.load(answers)
