"""The formats of an export: TensorFlow's SavedModel, and LiteRT files with weights as float32 or as int8.

A SavedModel takes the inputs that clients have: pixels, image files, strings or token IDs. LiteRT files run without
TensorFlow.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.frameworks import keras, tf
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import FLOAT_TFLITE_FILE, INT8_TFLITE_FILE, SAVED_MODEL_DIR, ModelInfo
from tpu_components.core.examples.images import middle
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    IMAGE,
    PADDING,
    TASKS,
    TEXT,
    UNKNOWN,
    CorpusInput,
    ImageInput,
    TextInput,
)
from tpu_components.core.examples.text import load_vocabulary, tokenizer_ops
from tpu_components.core.models.language_model import StepModel
from tpu_components.core.models.lookup import UNITS_LAYER
from tpu_components.core.models.saved_model import SIGNATURE_LAYER

# Description of the signatures in export.json, by the kind of input.
INPUT_FACTS: Mapping[str, Mapping[str, Any]] = {
    IMAGE: {
        "range": (0, 255),
        "signatures": {"serving_default": "pixels", "encoded": "bytes of image files"},
    },
    TEXT: {"signatures": {"serving_default": "strings in UTF-8", "tokens": "IDs of tokens"}},
    CORPUS: {
        "signatures": {
            "serving_default": "int32[batch, num_tokens] IDs → the probabilities of every next character",
            "text": "strings in UTF-8 → the probabilities of the character after their last num_tokens characters",
            "step": (
                "int32[batch] IDs and float32[batch, state_size] → probabilities of the next characters, and the state"
            ),
        }
    },
}


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A trained model that is written in several formats.

    Attributes:
        model: The Keras model.
        info: Description of the model.
        model_dir: Folder of the model.
        calibrate: Function that reads the inputs with which int8 is calibrated.
    """

    model: Any
    info: ModelInfo
    model_dir: Path
    calibrate: Callable[[], np.ndarray]

    @property
    def answer(self) -> str:
        """Name of the model's output."""
        return TASKS[self.info.task].answer

    @property
    def scale(self) -> dict[str, list[float]]:
        """`scale` and `offset`, which convert standardised outputs to the units of the regression targets.

        Each is a list with one number per target. For other models, the dict is empty.
        """
        units = self.model.layers[-1]
        is_ours = units.name == UNITS_LAYER and hasattr(units, "scale")
        return {"scale": units.scale, "offset": units.offset} if is_ours else {}

    @functools.cached_property
    def steps(self) -> StepModel:
        """The language model as a function that predicts one character from the token before it and a state."""
        return StepModel(self.model)

    @property
    def step_specs(self) -> list[Any]:
        """A `tf.TensorSpec` for each input of `steps`: the token IDs, int32[batch], and the state."""
        return [
            tf.TensorSpec((None,), tf.int32, name="tokens"),
            tf.TensorSpec((None, self.steps.state_size), tf.float32, name="state"),
        ]

    @functools.cached_property
    def without_units(self) -> Any:
        """The model that is converted to LiteRT.

        For a regression, the last layer, which converts to the targets' units, is removed. For images, the input is
        float32 pixels.
        """
        from tpu_components.core.models.trained import load_trained_model

        is_of_images = isinstance(self.info.input, ImageInput)
        model = load_trained_model(self.model_dir, input_dtype="float32") if is_of_images else self.model
        return keras.Model(model.input, model.layers[-1].input) if self.scale else model


def write_saved_model(trained: TrainedModel, path: Path) -> str:
    """Write a SavedModel with the signatures that `INPUT_FACTS` lists for the kind of input, such as `serving_default`.

    Return an empty description of the quantised parts, because a SavedModel is not quantised.
    """
    module = tf.Module()
    # Keras's own ExportArchive would store every weight twice.
    module.weights = [variable.value for variable in trained.model.variables]
    # Tables and other resources of an imported SavedModel.
    module.imported = [layer for layer in trained.model.layers if layer.name == SIGNATURE_LAYER]
    inputs = trained.info.input
    signatures = _SIGNATURES[inputs.kind](inputs, trained, module)
    tf.saved_model.save(module, str(path), signatures=signatures)
    return ""


def _answering(trained: TrainedModel) -> Callable[[Any], dict[str, Any]]:
    """Return the model as a function with named outputs."""
    names = tf.constant(trained.info.class_names)

    def answer(inputs: Any) -> dict[str, Any]:
        outputs = trained.model(inputs, training=False)
        if trained.info.task != CLASSIFICATION:
            return {trained.answer: outputs}
        index = tf.argmax(outputs, axis=-1)
        return {"probabilities": outputs, "class_index": index, "class_name": tf.gather(names, index)}

    return answer


def _image_signatures(inputs: ImageInput, trained: TrainedModel, module: Any) -> dict[str, Any]:
    shape = inputs.image_shape
    answer = _answering(trained)

    def from_encoded(encoded: Any) -> Any:
        pixels = tf.map_fn(
            lambda file: records.decode_image(file, inputs.fed_shape, inputs.reduced, inputs.upright),
            encoded,
            fn_output_signature=tf.TensorSpec(inputs.fed_shape, tf.uint8),
        )
        return answer(middle(pixels, shape))

    pixels = tf.TensorSpec((None, *shape), tf.uint8, name="image")
    files = tf.TensorSpec((None,), tf.string, name="encoded")
    return {
        "serving_default": tf.function(answer, input_signature=[pixels]),
        "encoded": tf.function(from_encoded, input_signature=[files]),
    }


def _text_signatures(inputs: TextInput, trained: TrainedModel, module: Any) -> dict[str, Any]:
    answer = _answering(trained)
    tokenize, module.lookup = tokenizer_ops(inputs, load_vocabulary(trained.model_dir, inputs))

    def from_texts(text: Any) -> Any:
        return answer(tokenize(text))

    texts = tf.TensorSpec((None,), tf.string, name="text")
    tokens = tf.TensorSpec((None, *inputs.shape), tf.int32, name="tokens")
    return {
        "serving_default": tf.function(from_texts, input_signature=[texts]),
        "tokens": tf.function(answer, input_signature=[tokens]),
    }


def _corpus_signatures(inputs: CorpusInput, trained: TrainedModel, module: Any) -> dict[str, Any]:
    model, num_tokens = trained.model, inputs.num_tokens
    class_names = trained.info.class_names
    characters = [name for id_, name in enumerate(class_names) if id_ not in (PADDING, UNKNOWN)]
    first_id = len(class_names) - len(characters)
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(characters), tf.range(first_id, len(class_names), dtype=tf.int32)
    )
    module.table = tf.lookup.StaticHashTable(initializer, UNKNOWN)

    def from_texts(text: Any) -> Any:
        split = tf.strings.unicode_split(text, "UTF-8")[:, -num_tokens:]
        known = module.table.lookup(split.flat_values)
        tokens = split.with_flat_values(known).to_tensor(PADDING, shape=(None, num_tokens))
        last = tf.maximum(tf.cast(split.row_lengths(), tf.int32) - 1, 0)
        return {"probabilities": tf.gather(model(tokens, training=False), last, batch_dims=1)}

    def take_step(tokens: Any, state: Any) -> Any:
        probabilities, after = trained.steps.step(tokens, state)
        return {"probabilities": probabilities, "state": after}

    passages = tf.TensorSpec((None, num_tokens), tf.int32, name="tokens")
    texts = tf.TensorSpec((None,), tf.string, name="text")
    return {
        "serving_default": tf.function(_answering(trained), input_signature=[passages]),
        "text": tf.function(from_texts, input_signature=[texts]),
        "step": tf.function(take_step, input_signature=trained.step_specs),
    }


_SIGNATURES: Mapping[str, Callable[..., dict[str, Any]]] = {
    IMAGE: _image_signatures,
    TEXT: _text_signatures,
    CORPUS: _corpus_signatures,
}


def write_lite(trained: TrainedModel, path: Path, is_int8: bool) -> str:
    """Write a LiteRT file with weights as float32 or int8. Return a description of the quantised parts.

    An int8 image model is calibrated, and takes uint8. A model with a loop cannot be calibrated: only its weights are
    int8, activations are quantised while the model runs, and the state between two steps stays float32. The file of a
    regression returns standardised numbers, because one int8 scale for all outputs in the targets' units would lose
    precision for targets with small values, or with a small spread around a large mean.
    """
    function = _trace(trained)
    quantized = ""
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], trained.without_units)
    converter.experimental_lower_to_saved_model = False  # Weights become constants, which int8 needs.
    if is_int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        quantized = "weights"
        if isinstance(trained.info.input, ImageInput) and not _has_loops(function):
            calibration = trained.calibrate()
            quantized = "weights and activations, by calibration"
            converter.representative_dataset = lambda: ([image[None].astype(np.float32)] for image in calibration)
            converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
            converter.inference_input_type = tf.uint8
    try:
        content = converter.convert()
    except Exception as error:  # Each pass of the converter raises errors of another class.
        operations = sorted(set(re.findall(r"'(tf\.\w+)' op", str(error))))
        raise InputError(
            f"LiteRT does not support part of this model: {', '.join(operations) or describe(error)}. Replace these "
            "layers with layers that LiteRT can run on a CPU, and train again"
        ) from error
    path.write_bytes(with_plain_pixels(content) if is_int8 else content)
    return quantized


def with_plain_pixels(content: bytes) -> bytes:
    """Return an int8 LiteRT file whose uint8 input takes raw pixel values, 0 to 255.

    The converter derives the scale of the input from the calibration: if the brightest pixel is 220, an input of 255
    means 220. The model's first operation converts inputs of any scale, so it is enough to set the scale to 1. Then an
    input of 255 means 255.
    """
    from tensorflow.lite.python import schema_py_generated as schema
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for graph in model.subgraphs[:1]:
        for tensor in (graph.tensors[index] for index in graph.inputs):
            if tensor.type == schema.TensorType.UINT8 and tensor.quantization is not None:
                tensor.quantization.scale = [1.0]
                tensor.quantization.zeroPoint = [0]
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _trace(trained: TrainedModel) -> Any:
    """Return the model, or the step of a language model, as a concrete TensorFlow function.

    The step takes int32[batch] IDs and the state, and returns float32[batch, classes + state_size]. A model with loops
    takes one example at a time, because LiteRT does not support loops over batches of varying size.
    """
    inputs = trained.info.input
    if isinstance(inputs, CorpusInput):
        step = tf.function(lambda tokens, state: tf.concat(trained.steps.step(tokens, state), axis=-1))
        return step.get_concrete_function(*trained.step_specs)
    model = trained.without_units
    answer = trained.answer
    is_image = isinstance(inputs, ImageInput)

    def trace(batch_size: int | None) -> Any:
        dtype, name = (tf.float32, "image") if is_image else (tf.int32, "tokens")
        spec = tf.TensorSpec((batch_size, *inputs.shape), dtype, name=name)
        function = tf.function(lambda inputs: {answer: model(inputs, training=False)}, input_signature=[spec])
        return function.get_concrete_function()

    if not is_image:
        return trace(1)
    function = trace(None)
    return trace(1) if _has_loops(function) else function


def _has_loops(function: Any) -> bool:
    return any("While" in operation.type for operation in function.graph.get_operations())


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of an export.

    Attributes:
        file: Name of the file or folder.
        write: Function that writes a trained model to a path. It returns the quantised parts, in words, or an empty
            string.
        quantized_from: Name of the format that this format quantises, or an empty string. If that format cannot be
            made, this format is not made either.
        may_fail: Whether some models cannot be converted. If so, the conversion is tried before training.
    """

    file: str
    write: Callable[[TrainedModel, Path], str]
    quantized_from: str = ""
    may_fail: bool = True


FORMATS = {
    "saved_model": Format(SAVED_MODEL_DIR, write_saved_model, may_fail=False),
    "float": Format(FLOAT_TFLITE_FILE, functools.partial(write_lite, is_int8=False)),
    "int8": Format(INT8_TFLITE_FILE, functools.partial(write_lite, is_int8=True), quantized_from="float"),
}
