"""KFP wrappers of predict_batch: as one step, by Beam, or fanned out over several."""

from typing import Any, Dict, List

from kfp import dsl

from tpu_components.core.base.container_images import BEAM_IMAGE, STEPS_IMAGE, in_place_of_shell
from tpu_components.core.step.step_inputs import with_inputs
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
    """Predict every example of a source with an exported model; returns the number of predictions."""
    inputs = dict(locals())
    from tpu_components.core.step.step_record import run_component
    from tpu_components.predict_batch import PredictParams, predict_batch

    folders = ("exported", "predictions")
    return run_component("predict_batch", predict_batch, PredictParams, inputs, *folders).num_predicted


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
    """Predict every example on the workers of a Beam runner; returns the number of predictions.

    `asked` has the parameters of predict_batch.
    """
    inputs = {**asked, **locals(), "engine": "beam"}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.predict_batch import PredictParams, predict_batch

    folders = ("exported", "predictions")
    return run_component("predict_batch", predict_batch, PredictParams, inputs, *folders).num_predicted


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
    """Predict the examples of one range of the files; returns the number of files in the range.

    `asked` has the parameters of predict_batch.
    """
    inputs = {**asked, **locals()}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.predict_batch import PredictParams, fan_out

    return run_component(
        "predict_batch",
        lambda params, exported, answers: fan_out.answer_range(
            params, str(exported), str(answers), int(number), int(num_ranges)
        ),
        PredictParams,
        inputs,
        "exported",
        "answers",
        then=lambda answered: answered.num_files,
    )


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
    """Merge the files of predictions that parallel tasks wrote; returns the number of predictions."""
    inputs = {**asked, **locals()}
    from tpu_components.core.step.step_record import run_component
    from tpu_components.predict_batch import PredictParams, fan_out

    return run_component(
        "predict_batch",
        lambda params, exported, answers, output: fan_out.merge_ranges(
            params, str(exported), [*map(str, answers)], output
        ),
        PredictParams,
        inputs,
        "exported",
        "answers",
        "predictions",
    ).num_predicted
