"""KFP wrapper of predict_batch."""

from typing import Dict

from kfp import dsl

from components.container import STEPS_IMAGE, in_place_of_shell


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def predict_batch(
    exported: dsl.Input[dsl.Model],
    predictions: dsl.Output[dsl.Dataset],
    source: str,
    columns: Dict[str, str] = {},
    form: str = "jsonl",
    use_int8: bool = False,
    part_examples: int = 4096,
    num_workers: int = 0,
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Answer every example of a source with an exported model; returns the number of predictions."""
    inputs = dict(locals())
    import dataclasses
    import pathlib

    from components.predict_batch import PredictParams, predict_batch
    from components.step_inputs import params_from
    from components.step_record import step_record

    with step_record("predict_batch", predictions.path):
        params = params_from(inputs, PredictParams)
        result = predict_batch(params, pathlib.Path(exported.path), pathlib.Path(predictions.path))
        predictions.metadata.update(dataclasses.asdict(result))
        return result.num_predicted
