"""KFP wrapper of preflight_training."""

from typing import Any, Dict, NamedTuple

from kfp import dsl

from tpu_components.core.base.container_images import IMAGE, in_place_of_shell
from tpu_components.core.step.component_inputs import with_inputs
from tpu_components.preflight_training.params import PreflightParams


@in_place_of_shell
@dsl.component(base_image=IMAGE, install_kfp_package=False)
@with_inputs(PreflightParams)
def preflight_training(
    records: dsl.Input[dsl.Dataset],
    preflight: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> NamedTuple("Results", [("timeout", str), ("footprint", Dict[str, Any])]):  # type: ignore[valid-type]
    """Compile the training step for its machine; fails where it does not fit or breaks a budget.

    Returns:
        When the training is to be stopped, as Vertex AI takes it: seconds, with an s. And what the step takes of the
        machine, which a version keeps.
    """
    inputs = dict(locals())
    import dataclasses
    import pathlib
    import shutil

    from tpu_components.core.base.errors import InputError
    from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE
    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.preflight_training import PreflightParams, preflight_training

    with step_record("preflight_training", preflight.path):
        params = params_from(inputs, PreflightParams)
        output = pathlib.Path(preflight.path)
        result = preflight_training(params, pathlib.Path(records.path), output)
        shutil.copyfile(output / PREFLIGHT_REPORT_FILE, report.path)
        figures = dataclasses.asdict(result)
        footprint = figures.pop("footprint")
        preflight.metadata.update(figures)
        if not result.passed:
            raise InputError(
                f"Stopped before training: {'; '.join(result.reasons)}. Correct the configuration; the report says "
                "more. To train without this check, set preflight: false."
            )
        return f"{result.timeout_seconds}s", footprint
