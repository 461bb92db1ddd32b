"""The step import_model as a KFP component.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
ImportParams.
"""

from typing import Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def import_model(
    records: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    trained: dsl.Output[dsl.Model],
    fingerprint: Dict[str, str] = {},
    *,
    class_names: List[str],
    pixel_range: List[float] = [],
    outputs: str = "auto",
    signature: str = "serving_default",
    output_name: str = "",
    code: str = "",
    name: str = "",
) -> None:
    """Import a model that another program trained, so that the other steps can use it.

    Args:
        records: Records that create_tfrecords wrote.
        model: A .keras file, a SavedModel, or a folder that contains one of them, from another step or from
            dsl.importer.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        class_names: Names of the classes in the order of the model's outputs or, for a regression, names of the
            targets. They must match the names in the records, in the same order.
        pixel_range: [low, high]: values that the model expects for the pixels 0 and 255, for example [0, 255], [0, 1]
            or [-1, 1]. Leave it empty if the model takes uint8, or begins with a layer that scales pixels of 0 to 255.
        outputs: Kind of the model's outputs, `probabilities` or `logits`. With `auto`, the outputs of a .keras file are
            treated as logits if its last layer has no activation. All other outputs must be probabilities; otherwise,
            the step fails. Ignored for a regression.
        signature: For a SavedModel, the name of the signature that takes images and returns predictions.
        output_name: For a SavedModel, the name of the signature's output that contains the predictions. You can leave
            it empty if only one output has the right shape.
        code: Path of a .py file, local or on gs://, that registers the custom classes of a .keras file with Keras. The
            .py file is saved with the model.
        name: Name of the model in reports. Empty means the name of its file.

    Returns:
        trained: Model in the format of train_model, for the other steps.
    """
    inputs = dict(locals())
    from tpu_components.core.component.step_record import run_component
    from tpu_components.import_model import ImportParams, import_model

    run_component("import_model", import_model, ImportParams, inputs, "records", "model", "trained")
