"""The step export_model as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
ExportParams.
"""

from typing import Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def export_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    export: dsl.Output[dsl.Model],
    fingerprint: Dict[str, str] = {},
    *,
    tolerance: float = 0.0001,
    min_agreement: float = 1.0,
    max_int8_accuracy_drop: float = 0.01,
    calibration_examples: int = 500,
    split: str = "test",
    required: List[str] = [],
) -> None:
    """Export a trained model for CPU serving. A new process checks that the exports predict the same as the model.

    Args:
        records: Records that create_tfrecords wrote.
        model: Model that train_model wrote.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        tolerance: Largest allowed difference between predictions of the trained model and of the SavedModel or float
            LiteRT file, as a probability or, for a regression, in standard deviations of the target.
        min_agreement: Smallest share of examples for which the SavedModel and the float LiteRT file must agree with the
            trained model. They agree if they predict the same class or the same labels or, for a regression, numbers
            that differ by at most a twentieth of a standard deviation.
        max_int8_accuracy_drop: Largest allowed loss of accuracy of the int8 format compared with the trained model; for
            multi-label data, loss of micro_f1, and for a regression, of r2. The format is left out if the loss is
            significantly larger, with 95% confidence.
        calibration_examples: Number of training images with which int8 is calibrated. Not used for texts, or for models
            with a loop.
        split: Split on which the formats are compared with the trained model.
        required: Formats without which the export fails: any of `saved_model`, `float` and `int8`. Other formats are
            left out, with the reason, if they cannot be made or differ too much from the trained model.

    Returns:
        export: Folder with `export.json` and the exported formats: `saved_model/`, `model.tflite` and
            `model_int8.tflite`.
    """
    inputs = dict(locals())
    from tpu_components.core.component.step_record import run_component
    from tpu_components.export_model import ExportParams, export_model

    run_component("export_model", export_model, ExportParams, inputs, "records", "model", "export")
