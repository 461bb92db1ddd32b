"""Saving and loading of trained models.

Keras rebuilds a model from its architecture and weights, without the user's original files. If a model has custom
layers, their code is saved with the model as `code.zip`, and `architecture.json` contains the digest of this code.
"""

import copy
import dataclasses
import functools
import gc
import json
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras, tf
from tpu_components.core.examples.artifacts import ARCHITECTURE_FILE, BEST_WEIGHTS_FILE, CODE_FILE, SAVED_MODEL_DIR
from tpu_components.core.examples.interface import LANGUAGE_MODEL
from tpu_components.core.metrics.keras_metrics import measured_by, set_measured
from tpu_components.core.models.bundle import Bundle, custom_objects, objects_of_keras_only, open_bundle
from tpu_components.core.models.language_model import StepModel
from tpu_components.core.models.lookup import bundle_of, explain
from tpu_components.core.models.saved_model import SavedModel, digest_files

# Keys of architecture.json: the SHA-256 of `code.zip`, and the Keras configurations of the additional metrics. For a
# SavedModel that another program wrote, the file contains only the third key.
_CODE, _METRICS, _SAVED_MODEL = "code_sha256", "metrics", "saved_model"


_ADVICE = (
    "Put @keras.saving.register_keras_serializable() above every custom class and function of the model. Give each "
    "class, including subclasses of keras.Model, a get_config that returns the arguments of its __init__. Use a "
    "registered function instead of a lambda."
)


def save_architecture(model: Any, directory: Path, code: Bundle | None = None) -> None:
    """Write a model's Keras configuration to `architecture.json` and its custom code, if any, to `code.zip`."""
    architecture = _config_of(model)
    if code is not None:
        architecture[_CODE] = code.digest
        (directory / CODE_FILE).write_bytes(code.content)
    (directory / ARCHITECTURE_FILE).write_text(json.dumps(architecture, indent=1))


def save_saved_model(saved: SavedModel, directory: Path) -> None:
    """Write the settings of a SavedModel, and the digests of its files in `directory`, to `architecture.json`."""
    saved = dataclasses.replace(saved, files=digest_files(directory / SAVED_MODEL_DIR))
    (directory / ARCHITECTURE_FILE).write_text(json.dumps({_SAVED_MODEL: dataclasses.asdict(saved)}, indent=1))


def _config_of(model: Any) -> dict[str, Any]:
    """Return the model's configuration as JSON values, with its additional metrics, but without `compile_config`."""
    config: dict[str, Any] = json.loads(
        model.to_json(), object_hook=lambda item: {k: v for k, v in item.items() if k != "compile_config"}
    )
    if metrics := measured_by(model):
        serialized = [keras.saving.serialize_keras_object(metric) for metric in metrics]
        config[_METRICS] = json.loads(json.dumps(serialized))  # Raises TypeError for values that JSON cannot hold.
    return config


def _in_float32(item: dict[str, Any]) -> dict[str, Any]:
    """Replace a mixed-precision policy in a configuration with float32."""
    is_mixed = item.get("class_name") == "DTypePolicy" and item["config"]["name"].startswith("mixed_")
    return {**item, "config": {"name": "float32"}} if is_mixed else item


def load_trained_model(directory: Path, weights_file: str = BEST_WEIGHTS_FILE, input_dtype: str | None = None) -> Any:
    """Rebuild a model in float32 from `architecture.json` and its weights, on Keras's current device.

    Args:
        directory: Folder that train_model wrote.
        weights_file: File of the weights to load.
        input_dtype: Dtype of the model's input. None keeps the dtype of training. Pixels are always in [0, 255].

    Returns:
        The keras.Model, not compiled.

    Raises:
        InputError: If a file is missing or damaged, or the architecture refers to custom code that is not in
            `code.zip`.
    """
    path = directory / ARCHITECTURE_FILE
    try:
        config = json.loads(path.read_text(), object_hook=_in_float32)
        if _SAVED_MODEL in config:
            model = typed_values.read(config[_SAVED_MODEL], SavedModel).build(directory / SAVED_MODEL_DIR)
            model.load_weights(directory / weights_file)
            return model
        digest = config.pop(_CODE, None)
        code = directory / CODE_FILE
        objects = custom_objects(open_bundle(code.read_bytes(), digest, str(code))) if digest else {}
        if input_dtype is not None:
            for layer in config["config"]["layers"]:
                if layer["class_name"] == "InputLayer":
                    layer["config"]["dtype"] = input_dtype
        model = _rebuild(config, objects)
        model.load_weights(directory / weights_file)
        for layer in model._flatten_layers(include_self=False):
            if hasattr(layer, "recurrent_dropout") and not hasattr(layer, "cell"):
                # Keras draws dropout masks even in inference, and the changed random state cannot be exported.
                layer.dropout = layer.recurrent_dropout = 0.0
    except FileNotFoundError as error:
        raise InputError(
            f"Cannot load the model in {directory}: {error}. Expected a folder that train_model wrote. Check the path."
        ) from error
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise InputError(
            f"Cannot load the model in {directory}: it contains custom code or is damaged ({explain(error)}). "
            "Expected only layers that are part of Keras. Train the model again with train_model."
        ) from error
    return model


def check_rebuilds(model: Any, name: str, task: str) -> Bundle | None:
    """Check before training that evaluation and export will be able to rebuild a model.

    Args:
        model: A keras.Model.
        name: Name of the model in the configuration.
        task: Task of the model.

    Returns:
        The custom code to save with the model, or None if all layers and metrics are Keras's own.

    Raises:
        InputError: If the model uses custom code that its modules do not register with Keras, or is a language model
            without a step function (see `StepModel`).
    """
    try:
        config = _config_of(model)
    except Exception as error:  # Keras and the user's `get_config` may raise anything.
        first = next(iter(" ".join(str(error).split()).split(". ")), "")
        raise InputError(f"The model {name!r} cannot be saved: {first or type(error).__name__}. {_ADVICE}") from error
    code = None
    rebuilt, failure = _try_to_rebuild(config, {})
    if failure is not None:
        code = None if name.endswith(".keras") else bundle_of(name)
        if code is None:
            raise InputError(
                f"Evaluation and export cannot rebuild the model {name!r} without its code ({explain(failure)}). Use a "
                ".py file or module:function, whose code is saved with the model."
            ) from failure
        objects = custom_objects(open_bundle(code.content, code.digest, code.name))
        rebuilt, failure = _try_to_rebuild(config, objects)
        if failure is not None:
            raise InputError(
                f"Evaluation and export cannot rebuild the model {name!r} from its file ({explain(failure)}). {_ADVICE}"
            ) from failure
    set_measured(model, measured_by(rebuilt))  # Copies for validation; the compiled step has its own metrics.
    del rebuilt, failure
    gc.collect()  # Frees the second model's device memory; it has reference cycles.
    if task == LANGUAGE_MODEL:
        StepModel(model)
    return code


def _try_to_rebuild(config: dict[str, Any], objects: dict[str, Any]) -> tuple[Any, Exception | None]:
    """Rebuild a model from its configuration. Return (model, None), or (None, error) if Keras raises an error."""
    try:
        return _rebuild(config, objects), None
    except Exception as error:
        return None, error


def _rebuild(config: dict[str, Any], objects: dict[str, Any]) -> Any:
    """Build a model from its configuration.

    `objects` take precedence over objects that are registered in this process.
    """
    config = copy.deepcopy(config)  # Keras changes what it reads.
    with objects_of_keras_only():
        model, *metrics = (
            keras.saving.deserialize_keras_object(item, custom_objects=objects)
            for item in (config, *config.get(_METRICS, ()))
        )
    set_measured(model, metrics)
    return model


def predict(model: Any, inputs: np.ndarray, batch_size: int, num_replicas: int = 1) -> np.ndarray:
    """Return the model's outputs for all examples. Batch size and number of replicas do not change the outputs.

    The last batch is padded to the full size, and the outputs of the padding are removed. So every replica runs the
    same program on batches of the same shape.

    Args:
        model: A keras.Model of the current backend.
        inputs: Inputs of the model, for example uint8[num_examples, height, width, channels] for images.
        batch_size: Examples per replica and step.
        num_replicas: Number of replicas that share a step.

    Returns:
        float32[num_examples, …] outputs: for a classifier, the probabilities of the classes.
    """
    from tpu_components.core.examples.records import static_options

    step = batch_size * num_replicas
    num_steps = -(-len(inputs) // step)
    indices = np.zeros(num_steps * step, np.int64)
    indices[: len(inputs)] = np.arange(len(inputs))
    values = tf.constant(inputs)
    dataset = tf.data.Dataset.from_tensor_slices(indices.reshape(num_steps, step))
    dataset = dataset.map(functools.partial(tf.gather, values), num_parallel_calls=1).prefetch(2)
    return model.predict(dataset.with_options(static_options()), verbose=0)[: len(inputs)].astype(np.float32)
