"""What can be known within seconds of a run on a platform, which is not asked: settings, image, machine, model."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tpu_components.core.base.container_images import is_pinned
from tpu_components.core.base.states import Status
from tpu_components.core.models.bundle import Bundle, data_files, is_reference
from tpu_components.core.models.lookup import bundle_of
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import TARGET_SETTINGS, Settings
from tpu_pipelines.doctor.findings import Check, Cost, Finding
from tpu_pipelines.pipeline.compile import compile_pipeline, require_step_image, step_image


class PlatformChecks:
    """The checks of what a submission needs; nothing is sent or asked.

    Args:
        config: Configuration to check.
        target: `vertex` or `kubeflow`.
        settings: Those that say where pipelines run.
    """

    def __init__(self, config: Config, target: str, settings: Settings) -> None:
        self._config, self._target, self._settings = config, target, settings

    def checks(self) -> list[Check]:
        """Return everything to ask, in the order in which it is told."""
        return [
            Check(self._target, self._place, Cost.FILE),
            image_check(step_image(), self._target),
            Check(self._target, self._compiled, Cost.SECONDS),
        ]

    def _place(self) -> str:
        names = TARGET_SETTINGS[self._target]
        self._settings.require(*names)
        return ", ".join(f"{name} {getattr(self._settings, name)}" for name in names)

    def _compiled(self) -> Iterator[Finding]:
        with tempfile.TemporaryDirectory(prefix="check-") as folder:
            compiled = compile_pipeline(self._config, self._target, Path(folder) / "pipeline.yaml", self._settings)
        said = f"the pipeline compiles, to train on {compiled.machine.slice}. {compiled.timeout.reason}"
        yield Finding(self._target, Status.OK, said)
        yield from model_findings(self._config.training.model, compiled.carried)


def image_check(image: str, target: str) -> Check:
    """Return the check whether a platform can fetch an image, and always gets the same one."""

    def ask() -> str | list[Finding]:
        require_step_image(image, target)
        if is_pinned(image):
            return image
        said = f"the image {image!r} is named by a tag. When the tag moves, cached steps give stale results"
        return [Finding("image", Status.HINT, said, "set TPU_PIPELINES_IMAGE=…@sha256:…")]

    return Check("image", ask, Cost.FILE)


def model_findings(model: str, carried: Mapping[str, bytes]) -> Iterator[Finding]:
    """Say how a model's code reaches the platform, and which files travel with it: more than a user may know of.

    Args:
        model: Name of the model in the configuration.
        carried: Content of the files that travel, by their place.
    """
    for place, content in carried.items():
        yield Finding("model", Status.OK, f"{model} travels as {place}, {len(content):,} bytes")
        for name, size in data_files(Bundle(Path(place).name, content)).items():
            yield Finding("model", Status.HINT, f"{name}, {size:,} bytes, travels with the model's code")
    if carried:
        return
    if is_reference(model) or not bundle_of(model):
        yield Finding("model", Status.OK, f"{model} is in the image")
    else:
        said = f"the code of the model {model!r} does not travel, as no bucket is set: the image must hold it"
        yield Finding("model", Status.HINT, said, "or set TPU_PIPELINES_BUCKET=gs://BUCKET")
