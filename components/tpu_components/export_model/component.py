"""KFP wrapper of export_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.step_inputs import with_inputs
from tpu_components.export_model.params import ExportParams


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
@with_inputs(ExportParams)
def export_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    exported: dsl.Output[dsl.Model],
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> None:
    """Export a trained model for CPU serving; a fresh process checks that the exports give the model's answers."""
    inputs = dict(locals())
    from tpu_components.core.step.step_record import run_component
    from tpu_components.export_model import ExportParams, export_model

    run_component("export_model", export_model, ExportParams, inputs, "records", "model", "exported")
