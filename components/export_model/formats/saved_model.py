"""TensorFlow's SavedModel: takes what a client has, be it pixels, files, strings or ids."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.examples import records
from tpu_components.core.examples.images import middle
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    CORPUS,
    IMAGE,
    PADDING,
    TEXT,
    UNKNOWN,
    CorpusInput,
    ImageInput,
    TextInput,
)
from tpu_components.core.examples.text import load_vocabulary, tokenizer_ops
from tpu_components.export_model.formats.trained import TrainedModel

# What export.json says of the signatures, by the kind of input.
INPUT_FACTS: Mapping[str, Mapping[str, Any]] = {
    IMAGE: {
        "range": (0, 255),
        "signatures": {"serving_default": "pixels", "encoded": "bytes of image files"},
    },
    TEXT: {"signatures": {"serving_default": "strings in UTF-8", "tokens": "ids of tokens"}},
    CORPUS: {
        "signatures": {
            "serving_default": "int32[batch, num_tokens] ids → the probabilities of every next character",
            "text": "strings in UTF-8 → the probabilities of the character after their last num_tokens characters",
            "step": "int32[batch] ids and float32[batch, state_size] → probabilities of the next characters, and the "
            "state",
        }
    },
}


def write_saved_model(trained: TrainedModel, path: Path) -> str:
    """Write `saved_model/`, with the signatures that `INPUT_FACTS` lists; nothing in it is quantised."""
    tf = records.tensorflow()
    module = tf.Module()
    # Keras's own ExportArchive would store every weight twice.
    module.weights = [variable.value for variable in trained.model.variables]
    tf.saved_model.save(module, str(path), signatures=_signatures(trained.info.input, trained, module))
    return ""


def _answering(trained: TrainedModel) -> Callable[[Any], dict[str, Any]]:
    """Return the model as a function whose answers have names."""
    tf = records.tensorflow()
    names = tf.constant(trained.info.class_names)

    def answer(inputs: Any) -> dict[str, Any]:
        outputs = trained.model(inputs, training=False)
        if trained.info.task != CLASSIFICATION:
            return {trained.answer: outputs}
        index = tf.argmax(outputs, axis=-1)
        return {"probabilities": outputs, "class_index": index, "class_name": tf.gather(names, index)}

    return answer


@functools.singledispatch
def _signatures(inputs: Any, trained: TrainedModel, module: Any) -> dict[str, Any]:
    """Return the signatures by name, for inputs of one kind; `module` keeps what they need."""
    raise TypeError(f"No signatures for inputs of {type(inputs)}.")


@_signatures.register
def _(inputs: ImageInput, trained: TrainedModel, module: Any) -> dict[str, Any]:
    tf = records.tensorflow()
    shape, answer = inputs.image_shape, _answering(trained)

    def from_encoded(encoded: Any) -> Any:
        pixels = tf.map_fn(
            lambda file: records.decode_image(file, inputs.fed_shape, inputs.reduced),
            encoded,
            fn_output_signature=tf.TensorSpec(inputs.fed_shape, tf.uint8),
        )
        return answer(middle(pixels, shape))

    def from_pixels(image: Any) -> Any:
        return answer(image)

    pixels = tf.TensorSpec((None, *shape), tf.uint8, name="image")
    files = tf.TensorSpec((None,), tf.string, name="encoded")
    return {
        "serving_default": tf.function(from_pixels, input_signature=[pixels]),
        "encoded": tf.function(from_encoded, input_signature=[files]),
    }


@_signatures.register
def _(inputs: TextInput, trained: TrainedModel, module: Any) -> dict[str, Any]:
    tf = records.tensorflow()
    answer = _answering(trained)
    tokenize, module.lookup = tokenizer_ops(inputs, load_vocabulary(trained.model_dir, inputs))

    def from_texts(text: Any) -> Any:
        return answer(tokenize(text))

    def from_tokens(tokens: Any) -> Any:
        return answer(tokens)

    texts = tf.TensorSpec((None,), tf.string, name="text")
    tokens = tf.TensorSpec((None, *inputs.shape), tf.int32, name="tokens")
    return {
        "serving_default": tf.function(from_texts, input_signature=[texts]),
        "tokens": tf.function(from_tokens, input_signature=[tokens]),
    }


@_signatures.register
def _(inputs: CorpusInput, trained: TrainedModel, module: Any) -> dict[str, Any]:
    tf = records.tensorflow()
    model, num_tokens = trained.model, inputs.num_tokens
    class_names = trained.info.class_names
    characters = [name for id_, name in enumerate(class_names) if id_ not in (PADDING, UNKNOWN)]
    first_id = len(class_names) - len(characters)
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(characters), tf.range(first_id, len(class_names), dtype=tf.int32)
    )
    module.table = tf.lookup.StaticHashTable(initializer, UNKNOWN)

    def from_passages(tokens: Any) -> Any:
        return {"probabilities": model(tokens, training=False)}

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
        "serving_default": tf.function(from_passages, input_signature=[passages]),
        "text": tf.function(from_texts, input_signature=[texts]),
        "step": tf.function(take_step, input_signature=trained.step_specs),
    }
