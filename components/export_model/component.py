"""KFP wrapper of export_model."""

from typing import Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import STEPS_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def export_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    exported: dsl.Output[dsl.Model],
    tolerance: float = 1e-4,
    min_agreement: float = 1.0,
    max_int8_accuracy_drop: float = 0.01,
    calibration_examples: int = 500,
    split: str = "test",
    required: List[str] = [],
    fingerprint: Dict[str, str] = {},
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
