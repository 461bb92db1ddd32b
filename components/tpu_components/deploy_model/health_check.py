"""The health check of a registered version: compares the version's predictions with those of the evaluated model."""

import base64
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tpu_components.core.base.retries import PlatformError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.images import encode_png
from tpu_components.core.examples.interface import TextInput
from tpu_components.core.registry.reference import EXPORT_DIR
from tpu_components.core.registry.versions import RegisteredVersion, fetch
from tpu_components.core.work.workers import in_fresh_process
from tpu_components.deploy_model.params import DeployParams, HealthCheckResult
from tpu_components.serving.exported import load_model

_SECONDS = 600  # Far more than the largest model needs.
Predict = Callable[[np.ndarray], Mapping[int, np.ndarray]]
"""Function from model inputs, dtype[N, …], to outputs, float[outputs], by the position of the example."""


class HealthCheck:
    """Compares the predictions of a registered version with those of the evaluation.

    The compared examples are spread evenly over the evaluated split.
    """

    def __init__(
        self,
        params: DeployParams,
        version: RegisteredVersion,
        records_dir: Path,
        manifest: Manifest,
        split: str,
        evaluated: np.ndarray,
    ) -> None:
        self._records = records_dir, manifest, split
        self._places, self._inputs = records.spread_inputs(*self._records, params.health_check_examples)
        self._expected = evaluated[self._places]
        self._scale = manifest.interface.std or 1.0
        self._kind = "number, in standard deviations," if manifest.interface.std else "probability"
        self.class_names = manifest.class_names
        self._plural = manifest.input.plural
        self.output_name = manifest.interface.task.answer
        self._tolerance = params.health_check_tolerance
        self._failed = (
            f"The health check of version {version.number} of {params.model_name!r} failed, so no alias was moved:"
        )

    @functools.cached_property
    def instances(self) -> list[dict[str, str]]:
        """The examples as JSON for the serving image. They are used only with an endpoint."""
        records_dir, manifest, split = self._records
        if isinstance(manifest.input, TextInput):
            texts = records.pick_texts(records_dir, manifest, split, self._places)
            return [{"text": texts[place]} for place in self._places]
        return [{"b64": base64.b64encode(encode_png(image)).decode()} for image in self._inputs]

    def __call__(self, predict: Predict) -> HealthCheckResult:
        """Call `predict` with the examples, and compare its result with the evaluation.

        Returns:
            The number of predicted examples, and the largest difference.

        Raises:
            PlatformError: If the difference exceeds the tolerance, or `predict` fails.
        """
        try:
            outputs = predict(self._inputs)
        except PlatformError:
            raise
        except RuntimeError as error:
            raise PlatformError(f"{self._failed} {error}. Run export_model and deploy_model again.") from error
        differences = [
            (np.abs(numbers - self._expected[position]) / self._scale).max() for position, numbers in outputs.items()
        ]
        difference = float(np.max(differences, initial=0.0))
        if not difference <= self._tolerance:  # Written so that NaN fails.
            raise PlatformError(
                f"{self._failed} of {len(outputs)} {self._plural}, a {self._kind} differs by {difference:.2e} from "
                f"the evaluation; expected at most {self._tolerance:.2e}. The export may belong to another model. Run "
                "export_model and deploy_model again."
            )
        return HealthCheckResult(len(outputs), difference)


def predict_in_fresh_process(version: RegisteredVersion, scratch: Path, inputs: np.ndarray) -> Mapping[int, np.ndarray]:
    """Predict the examples `inputs` with the registered export, in a new process.

    Return a mapping from the index of each example in `inputs` to its outputs, float64[num_outputs].

    Raises:
        RuntimeError: If the process fails or takes too long.
    """
    export_dir = fetch(version, EXPORT_DIR, scratch)
    try:
        outputs = in_fresh_process(_predict, export_dir, inputs, seconds=_SECONDS)
    except Exception as error:
        raise RuntimeError(f"a new process could not predict: {str(error).rstrip('.')}") from error
    return dict(enumerate(outputs.astype(np.float64)))


def _predict(export_dir: Path, inputs: np.ndarray) -> np.ndarray:
    return load_model(export_dir).predict(inputs)
