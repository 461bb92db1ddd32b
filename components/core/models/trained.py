"""A trained model on disk: its architecture and weights, rebuilt without the code that made them.

A model that holds layers of the user's own has their code beside it, and its digest in the architecture.
"""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import ARCHITECTURE_FILE, BEST_WEIGHTS_FILE, CODE_FILE
from tpu_components.core.examples.interface import LANGUAGE_MODEL
from tpu_components.core.models.bundle import Bundle, custom_objects, open_bundle
from tpu_components.core.models.lookup import bundle_of
from tpu_components.core.models.stepping import StepModel

_CODE = "code_sha256"  # In architecture.json: the digest of the code without which it cannot be rebuilt.


_ADVICE = (
    "Put @keras.saving.register_keras_serializable() above every class and function of its own that the model holds, "
    "give a class a get_config that returns what its __init__ takes, a keras.Model always, and write no lambda: a "
    "registered function instead."
)


def save_architecture(model: Any, directory: Path, code: Bundle | None = None) -> None:
    """Write the model's Keras configuration as `architecture.json`, and the code that it needs as `code.zip`."""
    architecture = _with_precision(json.loads(model.to_json()), None)
    if code is not None:
        architecture[_CODE] = code.digest
        (directory / CODE_FILE).write_bytes(code.content)
    (directory / ARCHITECTURE_FILE).write_text(json.dumps(architecture, indent=1))


def _with_precision(config: Any, precision: str | None) -> Any:
    """Replace every mixed-precision policy in a configuration; with None, take out what compilation added."""
    if isinstance(config, dict):
        if precision and config.get("class_name") == "DTypePolicy" and config["config"]["name"].startswith("mixed_"):
            return {**config, "config": {"name": precision}}
        return {name: _with_precision(value, precision) for name, value in config.items() if name != "compile_config"}
    if isinstance(config, list):
        return [_with_precision(item, precision) for item in config]
    return config


def load_trained_model(
    directory: Path,
    weights_file: str = BEST_WEIGHTS_FILE,
    precision: str = "float32",
    input_dtype: str | None = None,
) -> Any:
    """Rebuild a model from `architecture.json` and weights, on whatever device Keras runs on.

    Args:
        directory: Folder that train_model wrote.
        weights_file: File of the weights to load.
        precision: The dtype policy to compute in, whatever the model was trained in: float32 is what CPUs serve.
        input_dtype: Dtype of the input, if not that of the training; its values stay in [0, 255].

    Returns:
        The keras.Model, not compiled.

    Raises:
        InputError: If a file is missing or damaged, or the architecture holds code that is neither Keras's own nor in
            the `code.zip` beside it.
    """
    path = directory / ARCHITECTURE_FILE
    try:
        config = _with_precision(json.loads(path.read_text()), precision)
        digest = config.pop(_CODE, None)
        code = directory / CODE_FILE
        objects = custom_objects(open_bundle(code.read_bytes(), digest, str(code))) if digest else {}
        if input_dtype is not None:
            for layer in config["config"]["layers"]:
                if layer["class_name"] == "InputLayer":
                    layer["config"]["dtype"] = input_dtype
        model = _rebuild(json.dumps(config), objects)
        model.load_weights(directory / weights_file)
        for layer in model._flatten_layers(include_self=False):
            if hasattr(layer, "recurrent_dropout") and not hasattr(layer, "cell"):
                # It draws masks also where none is used, and the state that this changes cannot be exported.
                layer.dropout = layer.recurrent_dropout = 0.0
    except FileNotFoundError as error:
        raise InputError(
            f"Cannot load the model in {directory}: {error}. Expected a folder that train_model wrote; check the path."
        ) from error
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise InputError(
            f"Cannot load the model in {directory}: it holds code of its own or is damaged ({reason}). Expected "
            "layers of Keras only. Train it again with train_model."
        ) from error
    return model


def check_rebuilds(model: Any, name: str, task: str) -> Bundle | None:
    """Check, before anyone pays for its training, that a model can be rebuilt as evaluation and export will do it.

    Args:
        model: A keras.Model.
        name: Name that the user gave it.
        task: Task of the model.

    Returns:
        The code without which it cannot, to be kept with the model; None for one of Keras's own layers.

    Raises:
        InputError: If it holds code that is neither Keras's own nor registered by its own modules, or is a language
            model that cannot answer one character at a time.
    """
    config, code = _configuration(model, name), None
    try:
        _rebuild(config, {})
    except Exception as error:  # Keras raises what it happens upon.
        if name.endswith(".keras") or (code := bundle_of(name)) is None:
            raise InputError(
                f"The model {name!r} cannot be rebuilt without its code ({_reason(error)}), as evaluation and export "
                "have to. Give it as a .py file or module:function, whose code is kept with the model."
            ) from error
        _check_rebuilds_with(code, config, name)
    finally:
        gc.collect()  # The second model refers to itself, and its weights would stay on the device.
    if task == LANGUAGE_MODEL:
        StepModel(model)
    return code


def _configuration(model: Any, name: str) -> str:
    try:
        return json.dumps(_with_precision(json.loads(model.to_json()), None))
    except Exception as error:  # Keras and the user's own `get_config` raise what they happen upon.
        first = next(iter(" ".join(str(error).split()).split(". ")), "")
        raise InputError(f"The model {name!r} cannot be saved: {first or type(error).__name__}. {_ADVICE}") from error


def _check_rebuilds_with(code: Bundle, config: str, name: str) -> None:
    try:
        _rebuild(config, custom_objects(open_bundle(code.content, code.digest, code.name)))
    except InputError:
        raise
    except Exception as error:  # See `check_rebuilds`.
        raise InputError(
            f"The model {name!r} cannot be rebuilt from its file ({_reason(error)}), as evaluation and export have to. "
            + _ADVICE
        ) from error


def _rebuild(config: str, objects: dict[str, Any]) -> Any:
    """Build a model from its configuration with these objects, whatever else is registered here, and comes first."""
    import keras

    registered = keras.saving.get_custom_objects()
    own = dict(registered)
    registered.clear()
    try:
        return keras.models.model_from_json(config, custom_objects=objects)
    finally:
        registered.clear()
        registered.update(own)


def _reason(error: Exception) -> str:
    text = str(error)
    return text.rpartition("Exception encountered: ")[2].strip().partition("\n")[0] or type(error).__name__


def predict(model: Any, inputs: np.ndarray, batch_size: int, num_replicas: int = 1) -> np.ndarray:
    """Return the answer to every example, exactly once, whatever the batch size and number of replicas.

    The last batch is padded to full size and its padding cut off again, so every replica always runs the same program
    on the same shape: the result does not depend on how examples were shared out.

    Args:
        model: A keras.Model of the backend that runs.
        inputs: Inputs as the model takes them, of images uint8[num_examples, height, width, channels].
        batch_size: Examples per replica and step.
        num_replicas: Replicas that share a step.

    Returns:
        float32[num_examples, …], for classes their probabilities.
    """
    from tpu_components.core.examples.records import static_options, tensorflow

    tf = tensorflow()
    step = batch_size * num_replicas
    num_steps = -(-len(inputs) // step)
    indices = np.zeros(num_steps * step, np.int64)
    indices[: len(inputs)] = np.arange(len(inputs))
    values = tf.constant(inputs)
    dataset = tf.data.Dataset.from_tensor_slices(indices.reshape(num_steps, step))
    dataset = dataset.map(lambda batch: tf.gather(values, batch), num_parallel_calls=1).prefetch(2)
    return model.predict(dataset.with_options(static_options()), verbose=0)[: len(inputs)].astype(np.float32)
