"""KFP wrapper of preflight_training."""

from typing import Any, Dict, NamedTuple

from kfp import dsl

from tpu_components.core.base.container_images import IMAGE, in_place_of_shell
from tpu_components.core.step.step_inputs import with_inputs
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
    """Compile the training step for its machine; fails if it does not fit in memory or exceeds a budget.

    Returns:
        Time limit of the training in Vertex AI's format, seconds followed by `s`; and the footprint of the training
        step, which is stored with a registered version.
    """
    inputs = dict(locals())
    import dataclasses
    import shutil

    from tpu_components.core.base.errors import InputError
    from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE
    from tpu_components.core.step.step_record import run_component
    from tpu_components.preflight_training import PreflightParams, preflight_training

    def show(result: Any) -> Any:
        shutil.copyfile(f"{preflight.path}/{PREFLIGHT_REPORT_FILE}", report.path)
        figures = dataclasses.asdict(result)
        footprint = figures.pop("footprint")
        preflight.metadata.update(figures)
        if not result.passed:
            raise InputError(
                f"Stopped before training: {'; '.join(result.reasons)}. Correct the configuration; the report says "
                "more. To train without this check, set preflight: false."
            )
        return f"{result.timeout_seconds}s", footprint

    return run_component(
        "preflight_training", preflight_training, PreflightParams, inputs, "records", "preflight", then=show
    )
