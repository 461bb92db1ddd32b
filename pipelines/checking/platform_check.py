"""What can be known in seconds of a run on a platform, which is not asked: settings, image, machine, data, model."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpu_components.core.base.container_images import IMAGE, is_pinned
from tpu_components.core.base.errors import InputError
from tpu_components.core.models.bundle import Bundle, data_files
from tpu_components.core.models.lookup import bundle_of
from tpu_pipelines.checking.config_check import ERROR, HINT, OK, Finding
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import TARGET_SETTINGS, Settings
from tpu_pipelines.pipeline.compile import CompiledPipeline, compile_pipeline, require_step_image


def check_platform(config: Config, target: str, settings: Settings) -> Iterator[Finding]:
    """Look at what a submission to a platform needs, and compile the pipeline for it; nothing is sent or asked.

    Args:
        config: Configuration to check.
        target: `vertex` or `kubeflow`.
        settings: Those that say where pipelines run.
    """
    try:
        settings.require(*TARGET_SETTINGS[target])
        yield Finding(target, OK, ", ".join(f"{name} {getattr(settings, name)}" for name in TARGET_SETTINGS[target]))
    except InputError as error:
        yield Finding(target, ERROR, str(error))
    try:
        require_step_image(IMAGE, target)
        tag = "; its tag may move, and cached steps then give stale results: name it by @sha256:…"
        yield Finding("image", OK if is_pinned(IMAGE) else HINT, IMAGE + tag * (not is_pinned(IMAGE)))
    except InputError as error:
        yield Finding("image", ERROR, str(error))
    try:
        with tempfile.TemporaryDirectory(prefix="check-") as folder:
            compiled = compile_pipeline(config, target, Path(folder) / "pipeline.yaml", settings)
    except InputError as error:
        yield Finding(target, ERROR, str(error))
        return
    yield Finding(target, OK, f"the pipeline compiles, to train on {compiled.machine.slice}. {compiled.timeout.reason}")
    yield _of_model(config, compiled)


def _of_model(config: Config, compiled: CompiledPipeline) -> Finding:
    model = config.training.model
    for place, content in compiled.carried.items():
        beside = data_files(Bundle(Path(place).name, content))
        files = f", with {', '.join(beside)}" if beside else ""
        return Finding("model", OK, f"{model} travels as {place}, {len(content):,} bytes{files}")
    if bundle_of(model):
        return Finding(
            "model", HINT, f"the code of {model} does not travel, as no bucket is set: the image must hold it"
        )
    return Finding("model", OK, f"{model} is in the image")
