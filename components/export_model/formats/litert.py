"""LiteRT files, with weights as float32 or as int8; they run without TensorFlow.

In int8, one scale for all outputs would drown a target of small numbers, and a small spread around a large mean: the
files of a regression give standardised numbers, and export.json says what makes units of them.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.examples import records
from tpu_components.core.examples.interface import CorpusInput, ImageInput
from tpu_components.export_model.formats.trained import TrainedModel


def write_float(trained: TrainedModel, path: Path) -> str:
    """Write the model as it is; nothing in the file is quantised."""
    path.write_bytes(_convert(_converter(trained, _trace(trained))))
    return ""


def write_int8(trained: TrainedModel, path: Path) -> str:
    """Write the model quantised; returns what of it is int8.

    A model of images is calibrated, and takes uint8. A loop cannot be calibrated: there weights alone are int8, what is
    computed with them is quantised as it comes, and the state between two steps stays float32.
    """
    tf = records.tensorflow()
    function = _trace(trained)
    converter = _converter(trained, function)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    is_calibrated = isinstance(trained.info.input, ImageInput) and not _has_loops(function)
    if is_calibrated:
        calibration = trained.calibrate()
        converter.representative_dataset = lambda: ([image[None].astype(np.float32)] for image in calibration)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = tf.uint8
    path.write_bytes(_convert(converter))
    return "weights and activations, by calibration" if is_calibrated else "weights"


def _trace(trained: TrainedModel) -> Any:
    """Return the model as a TensorFlow function; of a language model one step.

    A model with loops takes one example at a time, since LiteRT knows no loop over a changing batch.
    """
    if isinstance(trained.info.input, CorpusInput):
        return _trace_step(trained)
    if not isinstance(trained.info.input, ImageInput):
        return _trace_batch(trained, 1)
    function = _trace_batch(trained, None)
    return _trace_batch(trained, 1) if _has_loops(function) else function


def _trace_batch(trained: TrainedModel, batch_size: int | None) -> Any:
    tf = records.tensorflow()
    inputs, model, answer = trained.info.input, trained.without_units, trained.answer
    dtype, name = (tf.float32, "image") if isinstance(inputs, ImageInput) else (tf.int32, "tokens")
    spec = tf.TensorSpec((batch_size, *inputs.shape), dtype, name=name)
    function = tf.function(lambda inputs: {answer: model(inputs, training=False)}, input_signature=[spec])
    return function.get_concrete_function()


def _trace_step(trained: TrainedModel) -> Any:
    """Trace a step from int32[batch] ids and the state to float32[batch, classes + state_size]."""
    tf = records.tensorflow()
    function = tf.function(lambda tokens, state: tf.concat(trained.steps.step(tokens, state), axis=-1))
    return function.get_concrete_function(*trained.step_specs)


def _has_loops(function: Any) -> bool:
    return any("While" in operation.type for operation in function.graph.get_operations())


def _converter(trained: TrainedModel, function: Any) -> Any:
    converter = records.tensorflow().lite.TFLiteConverter.from_concrete_functions([function], trained.without_units)
    converter.experimental_lower_to_saved_model = False  # So that weights become constants, which int8 needs.
    return converter


def _convert(converter: Any) -> bytes:
    try:
        return converter.convert()
    except Exception as error:  # Each of its passes raises something else.
        operations = sorted(set(re.findall(r"'(tf\.\w+)' op", str(error))))
        raise InputError(
            f"LiteRT has no form for a part of this model: {', '.join(operations) or describe(error)}. Replace the "
            "layer by others that it can run on a CPU, and train again"
        ) from error
