"""KFP wrappers of predict_batch: as one step, by Beam, or fanned out over several."""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import BEAM_IMAGE, STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.component_inputs import with_inputs
from tpu_components.predict_batch.params import PredictParams


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
@with_inputs(PredictParams)
def predict_batch(
    exported: dsl.Input[dsl.Model],
    predictions: dsl.Output[dsl.Dataset],
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
    **inputs: Any,
) -> int:
    """Answer every example of a source with an exported model; returns the number of predictions."""
    inputs = dict(locals())
    import dataclasses
    import pathlib

    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.predict_batch import PredictParams, predict_batch

    with step_record("predict_batch", predictions.path):
        params = params_from(inputs, PredictParams)
        result = predict_batch(params, pathlib.Path(exported.path), pathlib.Path(predictions.path))
        predictions.metadata.update(dataclasses.asdict(result))
        return result.num_predicted


@in_place_of_shell
@dsl.component(base_image=BEAM_IMAGE, install_kfp_package=False)
def predict_with_beam(
    exported: dsl.Input[dsl.Model],
    predictions: dsl.Output[dsl.Dataset],
    source: str,
    asked: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Have a Beam runner's workers answer, by predict_batch's parameters in `asked`; returns the number answered."""
    import dataclasses
    import pathlib

    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.predict_batch import PredictParams, predict_batch

    with step_record("predict_batch", predictions.path):
        params = params_from({**asked, "source": source, "engine": "beam"}, PredictParams)
        result = predict_batch(params, exported.path, pathlib.Path(predictions.path))
        predictions.metadata.update(dataclasses.asdict(result))
        return result.num_predicted


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def answer_range(
    exported: dsl.Input[dsl.Model],
    answers: dsl.Output[dsl.Artifact],
    number: int,
    num_ranges: int,
    source: str,
    asked: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Answer one range of the files, by predict_batch's parameters in `asked`; returns the number of these files."""
    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.predict_batch import PredictParams, fan_out

    with step_record("predict_batch", answers.path):
        params = params_from({**asked, "source": source}, PredictParams)
        return fan_out.answer_range(params, exported.path, answers.path, int(number), int(num_ranges)).num_files


@in_place_of_shell
@dsl.component(base_image=STEPS_IMAGE, install_kfp_package=False)
def merge_answers(
    exported: dsl.Input[dsl.Model],
    answers: dsl.Input[List[dsl.Artifact]],
    predictions: dsl.Output[dsl.Dataset],
    source: str,
    asked: Dict[str, Any] = {},
    data_version: str = "",
    fingerprint: Dict[str, str] = {},
) -> int:
    """Put the files of all ranges together; returns the number of predictions."""
    import dataclasses
    import pathlib

    from tpu_components.core.step.step_inputs import params_from
    from tpu_components.core.step.step_record import step_record
    from tpu_components.predict_batch import PredictParams, fan_out

    with step_record("predict_batch", predictions.path):
        params = params_from({**asked, "source": source}, PredictParams)
        folders = [each.path for each in answers]
        result = fan_out.merge_ranges(params, exported.path, folders, pathlib.Path(predictions.path))
        predictions.metadata.update(dataclasses.asdict(result))
        return result.num_predicted
