"""A language model for CPU serving: a SavedModel of passages, texts and steps, and LiteRT files of one step."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from components import records, storage
from components.artifacts import LABEL_FEATURE, Manifest, ModelInfo
from components.export_model import verification
from components.export_model.params import Compared
from components.interface import PADDING, UNKNOWN
from components.model_loading.stepping import StepModel

# Of the split that is compared, at most so much, from its start: the answers to its passages are held whole.
_MAX_PASSAGES, _MAX_ANSWER_BYTES = 2048, 512 << 20
_BATCH_SIZE = 256

SIGNATURES = {
    "serving_default": "int32[batch, num_tokens] ids → the probabilities of every next character",
    "text": "strings in UTF-8 → the probabilities of the character after their last num_tokens characters",
    "step": "int32[batch] ids and float32[batch, state_size] → probabilities of the next characters, and the state",
}


def write_saved_model(model: Any, info: ModelInfo, path: Path) -> None:
    """Write `saved_model/`, its three signatures as `SIGNATURES` says."""
    tf = records.tensorflow()
    steps, num_tokens = StepModel(model), info.input.shape[0]
    characters = [name for id_, name in enumerate(info.class_names) if id_ not in (PADDING, UNKNOWN)]
    first_id = len(info.class_names) - len(characters)
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(characters), tf.range(first_id, len(info.class_names), dtype=tf.int32)
    )
    module = tf.Module()
    module.weights = [variable.value for variable in model.variables]
    module.table = tf.lookup.StaticHashTable(initializer, UNKNOWN)

    def from_passages(tokens: Any) -> Any:
        return {"probabilities": model(tokens, training=False)}

    def from_texts(text: Any) -> Any:
        split = tf.strings.unicode_split(text, "UTF-8")[:, -num_tokens:]
        known = module.table.lookup(split.flat_values)
        tokens = split.with_flat_values(known).to_tensor(PADDING, shape=(None, num_tokens))
        last = tf.maximum(tf.cast(split.row_lengths(), tf.int32) - 1, 0)
        return {"probabilities": tf.gather(model(tokens, training=False), last, batch_dims=1)}

    def one_step(tokens: Any, state: Any) -> Any:
        probabilities, after = steps.step(tokens, state)
        return {"probabilities": probabilities, "state": after}

    passages = tf.TensorSpec((None, num_tokens), tf.int32, name="tokens")
    texts = tf.TensorSpec((None,), tf.string, name="text")
    signatures = {
        "serving_default": tf.function(from_passages, input_signature=[passages]),
        "text": tf.function(from_texts, input_signature=[texts]),
        "step": tf.function(one_step, input_signature=_step_specs(steps)),
    }
    tf.saved_model.save(module, str(path), signatures=signatures)


def _step_specs(steps: StepModel) -> list[Any]:
    tf = records.tensorflow()
    return [
        tf.TensorSpec((None,), tf.int32, name="tokens"),
        tf.TensorSpec((None, steps.state_size), tf.float32, name="state"),
    ]


def step_converter(model: Any, quantize: bool) -> Any:
    """What makes a LiteRT file of one step.

    int32[batch] ids and the state go in, float32[batch, classes + state_size] comes out.
    Quantised, its weights are int8, and what is computed with them is quantised as it comes; the state stays float32.
    """
    tf = records.tensorflow()
    steps = StepModel(model)
    function = tf.function(lambda tokens, state: tf.concat(steps.step(tokens, state), axis=-1))
    concrete = function.get_concrete_function(*_step_specs(steps))
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], model)
    converter.experimental_lower_to_saved_model = False  # So that weights become constants.
    if quantize:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter


def write_expectations(split: str, model: Any, records_dir: Path, manifest: Manifest, work: Path) -> Compared:
    """Leave passages and the trained model's own answers for the fresh process; returns what is compared."""
    from components.model_loading.trained import predict

    answer_bytes = 4 * math.prod(manifest.interface.output_shape)
    most = max(1, min(_MAX_PASSAGES, _MAX_ANSWER_BYTES // answer_bytes))
    inputs, labels = [], []
    for fields in records.read_batches(records_dir, manifest, split).as_numpy_iterator():
        inputs.append(fields[manifest.input.feature])
        labels.append(fields[LABEL_FEATURE])
        if sum(map(len, inputs)) >= most:
            break
    passages, targets = np.concatenate(inputs)[:most], np.concatenate(labels)[:most]
    expected = predict(model, passages, _BATCH_SIZE)
    np.save(work / verification.INPUTS_FILE, passages)
    np.save(work / verification.LABELS_FILE, targets)
    np.save(work / verification.EXPECTED_FILE, expected)
    # Of a language model it is the next character's accuracy, which quantisation lowers as it lowers a classifier's.
    task = {"task": manifest.task, "judged": "accuracy", "answer": manifest.interface.task.answer}
    storage.write_json(work / verification.TASK_FILE, task)
    accuracy = float((expected.argmax(-1) == targets)[targets != PADDING].mean())
    return Compared(len(passages), "accuracy", accuracy)
