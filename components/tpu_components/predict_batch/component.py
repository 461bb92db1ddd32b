"""KFP components that predict a source, on one machine or with Beam, and one that only lists its examples.

`python -m tests.evidence.generated` writes the inputs after `*`, and their entries in `Args:`, from the fields of
PredictParams.
"""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import LOCAL_BEAM_IMAGE, LOCAL_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def predict_batch(
    export: dsl.Input[dsl.Model],
    predictions: dsl.Output[dsl.Dataset],
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
    *,
    source: str,
    columns: Dict[str, str] = {},
    keep: List[str] = [],
    form: str = "jsonl",
    use_int8: bool = False,
    part_examples: int = 4096,
    num_workers: int = 0,
    engine: str = "local",
    beam_options: Dict[str, str] = {},
) -> int:
    """Predict every example of a source with an exported model. Return the number of predictions.

    Args:
        export: Export that export_model wrote.
        data_version: Digest of the source's content; `on_current_data` sets it. The step does not read it; the
            platform's cache runs the step again when it changes.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.
        source: Kind and place of the examples, as in create_tfrecords, or `records:DIR` for records that
            create_tfrecords wrote. Labels are not needed: `images:DIR` and `text:DIR` take every file below the folder.
        columns: Names of a table's columns for `path`, `text` and `id`, if they differ from those of the training data,
            for example {"path": "filename"}.
        keep: Columns of a table, features of TFRecords, or fields of the JSON files in webdataset archives, to copy to
            each prediction. The `id` is always copied.
        form: Format of the files: `jsonl`, with a line for each example, or `parquet`, which needs
            `tpu-pipelines[parquet]`.
        use_int8: Use the int8 model instead of the float model.
        part_examples: Examples per file. If a process is killed, at most the file that it was writing is lost.
        num_workers: Number of processes. 0 means one per available CPU.
        engine: Where examples are predicted: `local`, by processes of this machine, or `beam`, by the workers of an
            Apache Beam runner. Both write the same bytes.
        beam_options: Options of the Beam pipeline, under Beam's names, for example `runner`, `region`,
            `worker_machine_type` and `max_num_workers`. For an option without a value, use "". Finished files are
            stored below `temp_location`, which must be in a bucket if the `runner` uses other machines.

    Returns:
        predictions: Folder with the prediction files, a list of the examples that could not be read
            (`set_aside.jsonl`), and a summary (`predictions.json`).
        Output: Number of predictions.
    """
    inputs = dict(locals())
    from tpu_components.core.component.step_record import run_component
    from tpu_components.predict_batch import PredictParams, predict_batch

    folders = ("export", "predictions")
    return run_component("predict_batch", predict_batch, PredictParams, inputs, *folders).num_predicted


@in_place_of_shell
@dsl.component(base_image=LOCAL_IMAGE, install_kfp_package=False)
def list_inputs(
    export: dsl.Input[dsl.Model],
    *,
    source: str,
    columns: Dict[str, str] = {},
    keep: List[str] = [],
    form: str = "jsonl",
    use_int8: bool = False,
    part_examples: int = 4096,
    num_workers: int = 0,
    engine: str = "local",
    beam_options: Dict[str, str] = {},
) -> str:
    """List the examples for which predict_batch would make predictions, and return a digest of their content.

    This step always runs, because a platform's cache identifies data only by their path. The digest is an input of
    predict_batch, so that the cache detects changed data.

    Args:
        export: Export that export_model wrote. It contains the column names of the training data.
        source: Kind and place of the examples, as in create_tfrecords, or `records:DIR` for records that
            create_tfrecords wrote. Labels are not needed: `images:DIR` and `text:DIR` take every file below the folder.
        columns: Names of a table's columns for `path`, `text` and `id`, if they differ from those of the training data,
            for example {"path": "filename"}.
        keep: Columns of a table, features of TFRecords, or fields of the JSON files in webdataset archives, to copy to
            each prediction. The `id` is always copied.
        form: Format of the files: `jsonl`, with a line for each example, or `parquet`, which needs
            `tpu-pipelines[parquet]`.
        use_int8: Use the int8 model instead of the float model.
        part_examples: Examples per file. If a process is killed, at most the file that it was writing is lost.
        num_workers: Number of processes. 0 means one per available CPU.
        engine: Where examples are predicted: `local`, by processes of this machine, or `beam`, by the workers of an
            Apache Beam runner. Both write the same bytes.
        beam_options: Options of the Beam pipeline, under Beam's names, for example `runner`, `region`,
            `worker_machine_type` and `max_num_workers`. For an option without a value, use "". Finished files are
            stored below `temp_location`, which must be in a bucket if the `runner` uses other machines.

    Returns:
        Output: Digest of the examples' current content.
    """
    inputs = dict(locals())
    from tpu_components.core.base.termination import heard
    from tpu_components.core.component.step_inputs import params_from
    from tpu_components.predict_batch import PredictParams, inputs_version

    with heard():
        return inputs_version(params_from(inputs, PredictParams), export.path)


@in_place_of_shell
@dsl.component(base_image=LOCAL_BEAM_IMAGE, install_kfp_package=False)
def predict_with_beam(
    export: dsl.Input[dsl.Model],
    predictions: dsl.Output[dsl.Dataset],
    source: str,
    asked: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Predict every example on the workers of a Beam runner. Return the number of predictions.

    `asked` contains the parameters of predict_batch other than the source.

    Args:
        export: Export that export_model wrote.
        source: Kind and place of the examples, as in predict_batch.
        asked: Other inputs of predict_batch by name, such as {"use_int8": true}. Inputs that are left out have their
            default values.
        data_version: Digest of the source's content; `on_current_data` sets it. The step does not read it; the
            platform's cache runs the step again when it changes.
        fingerprint: Digest of the step's `code`. The step does not read it; the platform's cache runs the step again
            when it changes.

    Returns:
        predictions: Folder with the prediction files, a list of the examples that could not be read
            (`set_aside.jsonl`), and a summary (`predictions.json`).
        Output: Number of predictions.
    """
    inputs = {**asked, **locals(), "engine": "beam"}
    from tpu_components.core.component.step_record import run_component
    from tpu_components.predict_batch import PredictParams, predict_batch

    folders = ("export", "predictions")
    return run_component("predict_batch", predict_batch, PredictParams, inputs, *folders).num_predicted
