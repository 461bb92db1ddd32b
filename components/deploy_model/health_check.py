"""The health check of a registered version: its predictions are compared with those of the evaluated model.

As a command it is the process that predicts: python -m tpu_components.deploy_model.health_check EXPORT_DIR INPUTS
ANSWERS. INPUTS is a .npy file of the model's inputs, for example uint8[N, height, width, channels]; ANSWERS gets the
outputs, float32[N, outputs].
"""

import base64
import functools
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.base.terminal import paragraph
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.examples.images import encode_png
from tpu_components.core.examples.interface import TextInput
from tpu_components.core.files import storage
from tpu_components.core.registry.reference import EXPORT_DIR
from tpu_components.core.registry.versions import RegisteredVersion, fetch
from tpu_components.deploy_model.params import DeployParams, HealthCheckResult
from tpu_components.serving.exported import load_model

_SECONDS = 600  # Far more than the largest model needs.
_NO_ROOM = 2  # Exit code of the process that predicts, where the disk is full.
Answer = Callable[[np.ndarray], Mapping[int, np.ndarray]]
"""Inputs of the model, dtype[N, …] → float[outputs] by the example's position."""


class HealthCheck:
    """Compares predictions for examples, spread evenly over the split, with those of the evaluated model."""

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
        self.class_names, self._plural = manifest.class_names, manifest.input.plural
        self.answer = manifest.interface.task.answer
        self._tolerance = params.health_check_tolerance
        self._failed = (
            f"The health check of version {version.number} of {params.model_name!r} failed, so no alias moves:"
        )

    @functools.cached_property
    def instances(self) -> list[dict[str, str]]:
        """The examples as JSON for the serving image; used only with an endpoint."""
        records_dir, manifest, split = self._records
        if isinstance(manifest.input, TextInput):
            texts = records.pick_texts(records_dir, manifest, split, self._places)
            return [{"text": texts[place]} for place in self._places]
        return [{"b64": base64.b64encode(encode_png(image)).decode()} for image in self._inputs]

    def __call__(self, answer: Answer) -> HealthCheckResult:
        """Call `answer` with the examples and compare; returns their number and the largest difference.

        Raises:
            RuntimeError: If the difference exceeds the tolerance, or there is no prediction.
        """
        try:
            answers = answer(self._inputs)
        except PlatformError:
            raise
        except RuntimeError as error:
            raise PlatformError(f"{self._failed} {error}. Run export_model and deploy_model again.") from error
        differences = [
            (np.abs(numbers - self._expected[position]) / self._scale).max() for position, numbers in answers.items()
        ]
        difference = float(np.max(differences, initial=0.0))
        if not difference <= self._tolerance:  # Written so that NaN fails.
            raise RuntimeError(
                f"{self._failed} of {len(answers)} {self._plural}, a {self._kind} differs by {difference:.2e} from "
                f"what was evaluated; expected at most {self._tolerance:.2e}. Is it the export of another model? Run "
                "export_model and deploy_model again."
            )
        return HealthCheckResult(len(answers), difference)


def answer_in_fresh_process(version: RegisteredVersion, scratch: Path, inputs: np.ndarray) -> Mapping[int, np.ndarray]:
    """Predict with the registered export in a new process; returns float64[outputs] by the example's position.

    Raises:
        InputError: If the disk is full.
        RuntimeError: If the process fails.
    """
    export_dir = fetch(version, EXPORT_DIR, scratch)
    examples, answers = scratch / "inputs.npy", scratch / "answers.npy"
    with storage.naming_full_disk(examples):
        np.save(examples, inputs)
    command = [sys.executable, "-P", "-m", __name__, str(export_dir), str(examples), str(answers)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
    except subprocess.CalledProcessError as error:
        if error.returncode == _NO_ROOM:
            raise InputError(error.stderr.strip().splitlines()[-1]) from error
        raise RuntimeError(
            f"a fresh process got no answer (exit code {error.returncode}): {error.stderr.strip()[-2000:]}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"a fresh process got no answer within {_SECONDS} s") from error
    return dict(enumerate(np.load(answers).astype(np.float64)))


def main(export_dir: Path, inputs: Path, answers: Path) -> None:
    """Predict `inputs` with the export and write the outputs to `answers`."""
    code = 1
    try:
        with storage.naming_faults():
            predicted = load_model(export_dir).predict(np.load(inputs))
            code = _NO_ROOM
            with storage.naming_full_disk(answers):
                np.save(answers, predicted)
    except (InputError, PlatformError) as error:
        print(paragraph(str(error)), file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
