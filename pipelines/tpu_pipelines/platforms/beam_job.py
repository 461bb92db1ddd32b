"""Options of the Beam job that writes records on a platform."""

import json

from tpu_components.core.base.errors import InputError
from tpu_components.core.files.location import Scheme
from tpu_components.core.work.beam.options import DATAFLOW
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.settings import Settings
from tpu_pipelines.platforms.platform import Platform


def with_settings(config: Config, platform: Platform, settings: Settings) -> Config:
    """Return the configuration with a Beam runner and, for Dataflow, with the options from the settings.

    Values of the configuration take precedence over the settings.

    Raises:
        InputError: If neither the configuration nor the platform defines a runner, or if the runner is Dataflow and
            project, region or bucket is missing.
    """
    configured = config.data.beam_options
    runner = configured.get("runner", platform.beam_runner)
    if not runner:
        raise InputError(
            f"Cannot compile {config.name!r} for {platform.name}: {platform.title} does not include a Beam runner. "
            f"Set data.beam_options.runner, for example to {DATAFLOW} or FlinkRunner, or use data.engine=fan_out."
        )
    options = {"runner": runner, **(_on_dataflow(config, settings) if runner == DATAFLOW else {}), **configured}
    return config.changed("data", beam_options=options)


def _on_dataflow(config: Config, settings: Settings) -> dict[str, str]:
    """Return Dataflow's Beam options from the settings, by name, without empty options."""
    configured = config.data.beam_options
    bucket = settings.bucket_location
    options = {
        "project": settings.project,
        "region": settings.region,
        "temp_location": str(bucket.child("beam")) if bucket.scheme is Scheme.GOOGLE else "",
        "sdk_container_image": settings.images.beam,
        "service_account_email": settings.service_account,
        "dataflow_kms_key": settings.encryption_key,
        "labels": json.dumps(dict(settings.labels)) if settings.labels else "",
    }
    for name, setting in (("project", "project"), ("region", "region"), ("temp_location", "bucket")):
        if not (options[name] or configured.get(name)):
            raise InputError(
                f"Cannot compile {config.name!r}: Dataflow, which writes the records, requires "
                f"TPU_PIPELINES_{setting.upper()} or data.beam_options.{name}. Set one of them."
            )
    return {name: value for name, value in options.items() if value}
