"""KFP wrapper of export_model."""

from typing import Any, Dict

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.component_inputs import with_inputs
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
    """Export a trained model for CPU serving, compared with the trained one in a fresh process."""
    inputs = dict(locals())
    import dataclasses
    import pathlib

    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.export_model import ExportParams, export_model

    with step_record("export_model", exported.path):
        params = params_from(inputs, ExportParams)
        output = pathlib.Path(exported.path)
        result = export_model(params, pathlib.Path(records.path), pathlib.Path(model.path), output)
        exported.metadata.update(dataclasses.asdict(result))
