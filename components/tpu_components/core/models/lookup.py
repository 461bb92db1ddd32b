"""Find and build models by name: a registered name, a user's file or function, or a bundle."""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import math
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean, message_of
from tpu_components.core.base.fingerprint import OUR_PACKAGES, ROOTS, Code, code_of, is_file, is_installed
from tpu_components.core.base.frameworks import keras
from tpu_components.core.base.import_path import with_folders
from tpu_components.core.examples.interface import (
    CLASSIFICATION,
    FACTS,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    ImageInput,
    Interface,
    Task,
    TextInput,
)
from tpu_components.core.files import storage
from tpu_components.core.models import bundle
from tpu_components.core.models.bundle import Bundle, fetch, import_file, importing_from, is_reference, pack
from tpu_components.core.models.ready import REGISTRY

_BUILDER = "build_model"
_BROUGHT = "brought"  # Attribute of a model that holds a `Brought`; Keras does not save it.


UNITS_LAYER = "target_units"  # Last layer of a regression model: converts standardised outputs to the targets' units.
PROBABILITIES_LAYER = "probabilities"  # Last layer added to a model that returns logits.
BOTH_CLASSES_LAYER = "both_classes"  # Last layer added to a model that returns only the second class's probability.
_FIRST_CLASS_LAYER = "first_class"  # The layer before it. A default name could be in use in a `.keras` file.


# A last layer with one of these activations is an error unless the task needs it. Custom activations are accepted.
_ACTIVATIONS = ("linear", "softmax", "sigmoid", "hard_sigmoid", "log_softmax", "tanh", "relu", "softplus")


# Layers and operations that do not change values, at least outside training. The layer before them has the activation.
_NEUTRAL = ("Reshape", "Flatten", "Identity", "Squeeze", "ExpandDims", "Cast", "Dropout")


# Operations and layers that compute integers from integers, and whose results may be outside of the type's range.
_OVERFLOWING = ("Add", "Subtract", "Multiply", "Negative", "Square", "Power")


_TORCH_PACKAGES = ("torch", "torchvision", "pytorch_lightning", "lightning", "timm")
_TORCH = " This is PyTorch code, but a Keras model is required: write the model with keras.layers."


_ENDINGS = {"linear": "without an activation", "softmax": "with softmax", "sigmoid": "with sigmoid"}


@dataclasses.dataclass(frozen=True)
class Brought:
    """Training settings that come with a model, from its `compile` or from functions in its file.

    Attributes:
        optimizer: Keras optimizer, or None if the model is not compiled.
        loss: Loss in a form that `keras.Model.compile` accepts, or None if the model has none.
        metrics: Keras metrics.
        callbacks: Keras callbacks.
        has_step: Whether the model's class defines `train_step`.
    """

    optimizer: Any = None
    loss: Any = None
    metrics: Sequence[Any] = ()
    callbacks: Sequence[Any] = ()
    has_step: bool = False


def brought_by(model: Any) -> Brought:
    """Return the training settings that `build_model` attached to a model, or empty settings if there are none."""
    return vars(model).get(_BROUGHT, Brought())


def has_added_class(model: Any) -> bool:
    """Return whether `build_model` extended a user's single-output model with the probability of the first class."""
    last = model.outputs[0]._keras_history.operation  # A layer of the user may have this name, too.
    return last.name == BOTH_CLASSES_LAYER and type(last).__name__ == "Concatenate"


def check_model(name: str, parameters: Mapping[str, Any] | None = None) -> None:
    """Check, without importing Keras, that a model's name can be resolved.

    Raises:
        InputError: If a parameter is unknown, or if `name` is not a registered name, an existing `.py` or `.keras`
            file, `module:function`, or the reference of a bundle.
    """
    if is_reference(name):  # The bundle is checked when it is opened, possibly on another machine.
        return
    if name.endswith((".py", ".keras")):
        if not Path(name).is_file():
            raise InputError(
                f"Cannot read the model {name!r}: there is no file {os.path.abspath(name)}. Check the path. It is "
                "relative to the current folder."
            )
        if name.endswith(".keras") and parameters:
            raise InputError(
                f"The model file {name!r} does not accept parameters. Received: {sorted(parameters)}. Remove them, or "
                "use a .py file."
            )
        if name.endswith(".py"):
            _check_parameters(name, _signature_in_file(Path(name)), parameters or {})
    elif ":" in name:
        _find_module(name.split(":", 1)[0])
    elif name in REGISTRY:
        builder = importlib.import_module(REGISTRY[name]).build_model
        _check_parameters(name, set(inspect.signature(builder).parameters), parameters or {})
    else:
        raise InputError(
            f"Unknown model {name!r}: expected one of {', '.join(REGISTRY)}, a .py or .keras file, or module:function."
            + did_you_mean(name, REGISTRY)
        )


def _signature_in_file(path: Path) -> set[str] | None:
    """Return the parameter names of the file's `build_model`, without running the file, or None if they are unknown."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise InputError(f"Cannot import the model {str(path)!r}: {error}. Correct the file.") from error
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _BUILDER:
            arguments = node.args
            names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            return None if arguments.kwarg else names
    return None  # The function may be imported, which only running the file shows.


def _check_parameters(name: str, arguments: set[str] | None, parameters: Mapping[str, Any]) -> None:
    known = set(parameters) if arguments is None else arguments - FACTS
    for parameter in parameters:
        if parameter not in known:
            raise InputError(
                f"Unknown parameter {parameter!r} of the model {name!r}: expected one of {sorted(known)}."
                + did_you_mean(parameter, known)
            )


def _find_module(module_name: str) -> str:
    """Return the file of an importable module, without importing it."""
    try:
        with with_folders(Path.cwd()):
            spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise InputError(
            f"Cannot import the model's module {module_name!r}: it does not exist. Check its name and Python's import "
            "path."
        )
    return spec.origin


def bundle_of(name: str) -> Bundle | None:
    """Return a user's model as a bundle, or None if its code is part of this package or of installed libraries.

    Raises:
        InputError: If the model cannot be packed.
    """
    if is_reference(name):
        fetch(name)  # Verifies the digest.
        return Bundle(Path(name).name, storage.read_bytes(name))
    if name in REGISTRY:
        return None
    ours = [root / package for root in ROOTS for package in OUR_PACKAGES]
    files = {
        file: path
        for file, path in model_code(name).files.items()
        if not any(path.is_relative_to(folder) for folder in ours) and not is_installed(path)
    }
    return pack(name, files) if files else None


def source_files(name: str) -> list[Path]:
    """Return the Python files of a user's model and of the modules that it imports, without installed libraries."""
    if name in REGISTRY or name.endswith(".keras"):
        return []
    return sorted(path for path in model_code(name).files.values() if path.suffix == ".py")


def model_code(name: str, parameters: Mapping[str, Any] | None = None) -> Code:
    """Return the files that determine a model: its code, and the data files that its code or a parameter names.

    Args:
        name: A registered name, a `.py` or `.keras` file, or `module:function`.
        parameters: Hyper-parameters of the model.

    Raises:
        InputError: If the name is unknown, or a file of the code cannot be read.
    """
    named = named_files(parameters or {})
    if is_reference(name):
        return Code({**fetch(name).files, **named}, frozenset())
    if name.endswith(".keras"):
        return Code({Path(name).name: Path(name)}, frozenset())
    if name in REGISTRY:
        code = code_of([REGISTRY[name]])
    elif name.endswith(".py"):
        path = Path(name).resolve()
        code = code_of([path], (path.parent, *_own_folders()), (Path(),))
    else:
        check_model(name)
        code = _module_code(name.split(":", 1)[0])
    return Code({**code.files, **named}, code.libraries)


def _module_code(module: str) -> Code:
    """Return the code of a model in an importable module."""
    file = Path(_find_module(module))
    root = file.parents[module.count(".") + (file.name == "__init__.py")]
    if not is_installed(root):
        return code_of([module], (root, *_own_folders()), (Path(),))
    # The module may be next to installed libraries: read only its own package.
    files = (root / module.partition(".")[0]).rglob("*.py") if "." in module else [file]
    return Code({path.relative_to(root).as_posix(): path for path in files}, frozenset())


def _own_folders() -> tuple[Path, ...]:
    """Return the folders on Python's import path that contain code of the user or of this project."""
    folders = [Path(folder).resolve() for folder in (*sys.path, os.getcwd())]
    return (*(folder for folder in folders if folder.is_dir() and not is_installed(folder)), *ROOTS)


def named_files(parameters: Mapping[str, Any]) -> dict[str, Path]:
    """Return the local files that a model's parameters name, as {parameter value: path}."""
    return {text: Path(text) for text in _texts(parameters) if is_file(text)}


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in nested parameters."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _builder(name: str) -> tuple[Callable[..., Any], Mapping[str, Any]]:
    """Return the function that builds a model, and the variables of its module.

    For a registered model, the mapping of variables is empty.
    """
    function = _BUILDER
    try:
        if name.endswith(".py"):
            module = import_file(Path(name))
        elif ":" in name:
            module_name, function = name.split(":", 1)
            module = importlib.import_module(module_name)
        else:
            module = importlib.import_module(REGISTRY[name])
    except Exception as error:  # User code may raise anything.
        missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        raise InputError(
            f"Cannot import the model {name!r}: {explain(error)}. Correct the path or the file."
            + (_TORCH if missing in _TORCH_PACKAGES else "")
        ) from error
    if not callable(getattr(module, function, None)):
        raise InputError(
            (
                f"Cannot use the model {name!r}: it does not define {function}(image_shape, num_classes) or, for "
                f"texts, {function}(vocabulary_size, num_tokens, num_classes). Add this function. For a regression, "
                "its argument is num_targets instead of num_classes."
            )
            + (_TORCH if any(map(_is_torch, vars(module).values())) else "")
        )
    return getattr(module, function), {} if name in REGISTRY else vars(module)


def _is_torch(value: Any) -> bool:
    """Return whether a value is a Python module of PyTorch, or a PyTorch class, its subclass or an instance of one."""
    if inspect.ismodule(value):
        return value.__name__.partition(".")[0] in _TORCH_PACKAGES
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    return any(str(kind.__module__).partition(".")[0] in _TORCH_PACKAGES for kind in kinds)


def explain(error: Exception) -> str:
    """Return an error's class and the first line of its message."""
    text = re.split("(?:Error|Exception) encountered:", message_of(error))[-1]
    line, *_ = text.strip().splitlines() or [""]
    return f"{type(error).__name__}: {line}"


def _place_of(error: Exception) -> str:
    """Return the place of the last line of user code in an error's traceback, as ` (model.py, line 3)`.

    Return an empty string if the traceback contains no user code.
    """
    frames = traceback.extract_tb(error.__traceback__)
    others = (__file__, bundle.__file__)
    own = [frame for frame in frames if not is_installed(Path(frame.filename)) and frame.filename not in others]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def build_model(
    name: str,
    interface: Interface,
    parameters: Mapping[str, Any],
    warn: Callable[[str], None] = lambda warning: None,
) -> Any:
    """Build a model for a data set.

    Args:
        name: A registered name, a `.py` file with a function `build_model`, a `.keras` file, `module:function`, or the
            reference of a bundle.
        interface: Input and output that the data set requires.
        parameters: Hyper-parameters, passed to the function by name.
        warn: Function that is called with each warning, for example that a layer is added or that the input is not
            scaled.

    Returns:
        A keras.Model that maps dtype[batch, *input.shape] to float[batch, *output_shape]. `brought_by` returns the
        training settings that come with the model. For a regression, an added `Rescaling` layer converts standardised
        outputs to the targets' units. For classification and multi-label data, a softmax or sigmoid is added to a model
        that returns logits. For two classes, a model may return only the probability of the second class,
        float[batch, 1], as `Dense(1, activation="sigmoid")` does. The probability of the first class is then added.

    Raises:
        InputError: If the model cannot be imported, does not accept the parameters, has a `train_step` or
            `compute_loss` that training could not use, does not fit the data set in shape or activation, or is a
            `.keras` file with custom code.
    """
    if is_reference(name):
        opened = fetch(name)
        with importing_from(opened):
            return build_model(opened.model, interface, parameters, warn)
    check_model(name, parameters)
    folders = [] if name in REGISTRY or name.endswith(".keras") else [Path.cwd()]
    if name.endswith(".py"):
        folders.insert(0, Path(name).resolve().parent)
    with with_folders(*folders):
        return _build_here(name, interface, parameters, warn)


def _build_here(name: str, interface: Interface, parameters: Mapping[str, Any], warn: Callable[[str], None]) -> Any:
    if name.endswith(".keras"):
        return fit_to_data(name, _load_keras_file(name, warn), interface, warn)
    model, module = _run_builder(name, interface, parameters)
    return fit_to_data(name, model, interface, warn, module)


def fit_to_data(
    name: str,
    model: Any,
    interface: Interface,
    warn: Callable[[str], None] = lambda warning: None,
    module: Mapping[str, Any] = {},
) -> Any:
    """Check that a model fits a data set, and add layers that convert its output to the form that the task requires.

    Args:
        name: Name of the model in messages.
        model: The keras.Model.
        interface: Input and output that the data set requires.
        warn: Function that is called with each warning.
        module: Variables of the model's module, which may define training settings.

    Returns:
        See `build_model`.

    Raises:
        InputError: See `build_model`.
    """
    if not isinstance(model, keras.Model):
        raise InputError(
            f"{name!r} is not a Keras model: expected a keras.Model, received {type(model).__name__}. Return a Keras "
            f"model from {_BUILDER}." + (_TORCH if _is_torch(model) else "")
        )
    brought = _brought(name, model, module)
    if not getattr(model, "inputs", None):
        model = _called_on_input(name, model, interface)
    if isinstance(getattr(model, "output", None), dict):
        raise InputError(
            f"The output of the model {name!r} is a mapping: expected a tensor. Return keras.Model(inputs, outputs) "
            "with a tensor as outputs."
        )
    expected = (None, *interface.input.shape), (None, *interface.output_shape)
    has_one_output = _may_have_one_output(interface) and model.output_shape == (None, 1)
    if model.input_shape != expected[0] or (model.output_shape != expected[1] and not has_one_output):
        raise InputError(
            f"The model {name!r} does not fit the data: expected input {expected[0]} and output {expected[1]}, "
            f"received {model.input_shape} and {model.output_shape}. {_advise_on_shape(name, model, interface)}"
        )
    if operation := _overflowing_operation(model):
        raise InputError(
            f"The model {name!r} applies {operation!r} to pixels that are 8-bit integers, so results wrap around: 0 - "
            '1 is 255. Begin the model with keras.layers.Rescaling or keras.ops.cast(inputs, "float32"). The cast is '
            "also needed before the preprocess_input of a model in keras.applications."
        )
    if layer := _layer_for_floats(model):
        raise InputError(
            f"The model {name!r} passes its integer inputs to the layer {layer!r}, which needs floats. Begin the model "
            "with keras.layers.Rescaling(1 / 255)."
        )
    if isinstance(interface.input, ImageInput) and not _may_scale(model):
        warn(
            f"The model {name!r} has no layer that scales its input. The input is pixels from 0 to 255, even if the "
            "source has numbers from 0 to 1. Begin the model with keras.layers.Rescaling(1 / 255)."
        )
    task = interface.task
    activation = "sigmoid" if has_one_output else task.activation
    answer = model.outputs[0]
    # All added layers are float32: the 8 bits of bfloat16 would lose a small deviation from a large mean, or the
    # difference of a probability from 1.
    if _ending(answer) == "linear" and task.name in (CLASSIFICATION, MULTI_LABEL) and not brought.has_step:
        warn(
            f"The model {name!r} ends without an activation. Its outputs are treated as logits, and {activation} is "
            "added."
        )
        answer = keras.layers.Activation(activation, name=PROBABILITIES_LAYER, dtype="float32")(answer)
    else:
        _check_ending(name, answer, task, activation)
    if interface.mean:
        if name.endswith(".keras"):
            warn(
                f"The outputs of {name!r} are treated as standardised targets (mean 0, deviation 1), and a layer that "
                "converts them to the targets' own units is added. If the model already predicts in these own units, "
                "import it with import_model, and set training.initial_model to the imported model."
            )
        units = keras.layers.Rescaling(list(interface.std), list(interface.mean), name=UNITS_LAYER, dtype="float32")
        answer = units(answer)
    elif has_one_output:
        warn(f"The model {name!r} has one output, which is used as the probability of the second class.")
        first = keras.layers.Rescaling(-1.0, 1.0, name=_FIRST_CLASS_LAYER, dtype="float32")(answer)
        answer = keras.layers.Concatenate(name=BOTH_CLASSES_LAYER, dtype="float32")([first, answer])
    if answer is model.outputs[0]:
        vars(model)[_BROUGHT] = brought
        return model
    if brought.has_step:
        what = "a regression model gets an additional layer that converts to the targets' units"
        advice = ""
        if has_one_output:
            what = "a model with one output gets an additional layer with the probability of the first class"
            advice = ', or end the model with keras.layers.Dense(num_classes, activation="softmax")'
        raise InputError(
            f"Cannot train the model {name!r} with its own train_step: {what}. With this layer, the model becomes a "
            f"new keras.Model, which does not have this train_step. Remove train_step{advice}."
        )
    try:
        # Not `model.input`, which a Sequential model lacks before it is called.
        model = keras.Model(model.inputs[0], answer, name=model.name)
    except ValueError as error:
        reserved = UNITS_LAYER, PROBABILITIES_LAYER, _FIRST_CLASS_LAYER, BOTH_CLASSES_LAYER
        taken = next((layer.name for layer in model.layers if layer.name in reserved), "")
        if not taken:
            raise
        raise InputError(
            f"The model {name!r} has a layer with the name {taken!r}, which is reserved for the layer that is added "
            "after its output. Rename the model's layer."
        ) from error
    vars(model)[_BROUGHT] = brought
    return model


def _may_have_one_output(interface: Interface) -> bool:
    """Return whether the task is a classification with two classes, for which a model may have a single output.

    The probability of one class determines the probability of the other class.
    """
    return interface.task_name == CLASSIFICATION and interface.num_classes == 2


def _last_layer(task: Task) -> str:
    """Return Python code for a last layer that fits a task."""
    activation = "" if task.activation == "linear" else f', activation="{task.activation}"'
    return f"keras.layers.Dense({task.size_fact}{activation})"


def _advise_on_shape(name: str, model: Any, interface: Interface) -> str:
    """Return advice for a model whose input or output shape does not match the data."""
    if model.input_shape != (None, *interface.input.shape):
        if name.endswith(".keras"):
            return _advise_on_data(model.input_shape, interface)
        shape = next(fact for fact in ("image_shape", "num_tokens") if fact in interface.facts)
        return f"Begin the model with keras.Input({shape if shape == 'image_shape' else '(num_tokens,)'})."
    last = _last_layer(interface.task)
    if isinstance(model.output_shape, list):
        return f"Return keras.Model(inputs, output) with a single output that ends with {last}."
    received = model.output_shape[1:]
    wanted = interface.output_shape
    if interface.task_name == LANGUAGE_MODEL:
        return f"End the model with {last}, after recurrent layers with return_sequences=True."
    if not received and _may_have_one_output(interface):
        return "End the model with keras.layers.Reshape((1,))."
    if len(received) > 1:
        size = -1 if None in received else math.prod(received)
        if (size,) == wanted or (size == 1 and _may_have_one_output(interface)):
            return f"End the model with keras.layers.Reshape(({size},))."
        return f"Put keras.layers.Flatten(), or a global pooling layer, before the model's last layer, {last}."
    return f"End the model with {last}."


def _advise_on_data(batch_shape: Any, interface: Interface) -> str:
    """Return advice on how to convert the data to a saved model's input shape, `batch_shape`."""
    shape = batch_shape[1:] if isinstance(batch_shape, tuple) else ()
    if None not in shape and len(shape) == len(interface.input.shape):
        if isinstance(interface.input, ImageInput) and shape[-1] in (1, 3):
            return f"Set data.image_size={shape[0]},{shape[1]} and data.channels={shape[2]}."
        if isinstance(interface.input, TextInput):
            return f"Set data.num_tokens={shape[0]}."
    return f"Save the model again with keras.Input({interface.input.shape}) as its input."


def _brought(name: str, model: Any, module: Mapping[str, Any]) -> Brought:
    """Return the training settings that come with a model.

    The model's module can define `loss` (a function or a Keras loss), `metrics` and `callbacks` (functions or lists).
    These override the settings of the model's `compile`.
    """
    compiled = model._compile_config.config if model.compiled else {}
    forms = {"loss": keras.losses.Loss, "metrics": list | tuple, "callbacks": list | tuple}
    own = {
        kind: item
        for kind, form in forms.items()
        if inspect.isfunction(item := module.get(kind)) or isinstance(item, form)
    }

    def items_of(kind: str) -> Any:
        return own[kind]() if inspect.isfunction(own[kind]) else own[kind]

    try:
        metrics = (
            items_of("metrics") if "metrics" in own else [compiled.get("metrics"), compiled.get("weighted_metrics")]
        )
        # Keras resolves `accuracy` by the targets. Training reports the task's own metric anyway.
        named = [item for item in keras.tree.flatten(metrics) if item and item not in ("accuracy", "acc")]
        return Brought(
            model.optimizer if model.compiled else None,
            own.get("loss", compiled.get("loss")),
            [item if isinstance(item, keras.metrics.Metric) else _as_metric(item) for item in named],
            items_of("callbacks") if "callbacks" in own else (),
            type(model).train_step is not keras.Model.train_step,
        )
    except Exception as error:  # User code may raise anything.
        raise InputError(
            f"Cannot use the metrics or callbacks of the model {name!r}: {explain(error)}. Expected functions without "
            "arguments that return a list of keras.metrics.Metric or of keras.callbacks.Callback."
        ) from error


def _as_metric(named: Any) -> Any:
    """Return the Keras metric for a name or a function, as `keras.Model.compile` creates it."""
    metric = keras.metrics.get(named)
    if isinstance(metric, keras.metrics.Metric):
        return metric
    return keras.metrics.MeanMetricWrapper(metric, name=metric.__name__)


def _called_on_input(name: str, model: Any, interface: Interface) -> Any:
    """Call a subclassed or unbuilt model on a symbolic input, and return a model that can be saved."""
    methods = ("train_step", "compute_loss")
    lost = [method for method in methods if getattr(type(model), method) is not getattr(keras.Model, method)]
    if lost:
        own = " and ".join(lost)
        kind = type(model).__name__
        raise InputError(
            f"Cannot train the model {name!r} with its own {own}: the model was built without inputs and outputs, so "
            f"it is saved as a functional model, which loses {own}. In {_BUILDER}, return {kind}(inputs, outputs), "
            f"where inputs is a keras.Input(…), or remove {own}. To only extend the loss, call add_loss in a layer."
        )
    inputs = keras.Input(interface.input.shape, dtype=interface.input.dtype)
    if isinstance(model, keras.Sequential):
        return keras.Sequential([inputs, *model.layers], name=model.name)
    try:
        return keras.Model(inputs, model(inputs))
    except Exception as error:  # User code may raise anything.
        raise InputError(
            f"Cannot call the model {name!r} on keras.Input({interface.input.shape}): {explain(error)}. Create its "
            "layers in __init__ and their variables in build, and use keras.ops in call, or return "
            "keras.Model(inputs, outputs)."
        ) from error


def _check_ending(name: str, answer: Any, task: Task, activation: str) -> None:
    """Raise InputError if `answer`, the model's output, has a known activation other than `activation`."""
    ending = _ending(answer)
    if ending == "softmax" and answer.shape[-1] == 1:
        sigmoid = 'keras.layers.Dense(1, activation="sigmoid"), or with ' if task.name == CLASSIFICATION else ""
        raise InputError(
            f"The model {name!r} ends with a softmax over one output, whose result is always 1. End the model with "
            f"{sigmoid}{_last_layer(task)}."
        )
    if ending in _ACTIVATIONS and ending != activation:
        what = {
            "classification": "one class of several",
            "multi_label": "any number of labels",
            "language_model": "the next character",
        }
        has_one_output = activation != task.activation
        last = 'keras.layers.Dense(1, activation="sigmoid")' if has_one_output else _last_layer(task)
        raise InputError(
            f"The model {name!r} does not fit the task {task.name} ({what.get(task.name, 'numbers of any size')}): "
            f"expected a last layer {_ENDINGS[activation]}, received one {_ENDINGS.get(ending, f'with {ending}')}. "
            f"End the model with {last}, or change data.task."
        )


def _ending(output: Any) -> str:
    """Return the Keras name of the activation that produces an output.

    If the layer has no activation, return the name of its class in lower case.
    """
    operation, node_index, _ = output._keras_history
    if isinstance(operation, keras.Model) and getattr(operation, "outputs", None):
        return _ending(operation.outputs[0])
    kind = type(operation).__name__
    function = getattr(operation, "activation", operation)  # Softmax and ReLU are layers and operations, too.
    activation: str = getattr(function, "__name__", type(function).__name__.lower())
    if kind in _NEUTRAL or (kind == "Activation" and activation == "linear"):
        return _ending(operation._inbound_nodes[node_index].input_tensors[0])
    return activation


def _overflowing_operation(model: Any) -> str:
    """Return the name of an operation whose result is an 8-bit integer and may overflow, or "" if there is none."""
    for part in getattr(model, "operations", model.layers):
        if isinstance(part, keras.Model):
            if name := _overflowing_operation(part):
                return name
        elif type(part).__name__ in _OVERFLOWING and any(
            str(tensor.dtype).endswith("int8") for node in part._inbound_nodes for tensor in node.output_tensors
        ):
            return type(part).__name__.lower()
    return ""


def _layer_for_floats(model: Any) -> str:
    """Return the name of a layer that receives integers but needs floats, or "" if the model has none.

    Such a layer works with JAX, but not with TensorFlow, which evaluates and serves every model.
    """
    for layer in model._flatten_layers(include_self=False):
        tensors = [tensor for node in layer._inbound_nodes for tensor in node.input_tensors]
        if re.search("Conv|^AveragePooling", type(layer).__name__) and any(
            keras.backend.is_int_dtype(tensor.dtype) for tensor in tensors
        ):
            return str(layer.name)
    return ""


def _may_scale(model: Any) -> bool:
    """Return whether a model may scale its input.

    It may if one of its layers scales or normalises, is a Lambda layer, or is not part of Keras.
    """
    parts = [type(part) for part in getattr(model, "operations", model.layers)]
    return any(
        not part.__module__.startswith("keras.src.layers.")
        or part.__name__ in ("Rescaling", "Lambda")
        or part.__name__.endswith("Normalization")
        for part in parts
    )


def _run_builder(name: str, interface: Interface, parameters: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    (builder, module), facts = _builder(name), interface.facts
    signature = inspect.signature(builder)
    required = [name for name, parameter in signature.parameters.items() if parameter.default is parameter.empty]
    wanted = [name for name in required if name in FACTS and name not in facts]
    if wanted:
        raise InputError(
            f"The model {name!r} needs {', '.join(wanted)}, which the data ({interface.input.plural} for "
            f"{interface.task.name}) do not have. Choose a model whose function takes {', '.join(facts)}, or change "
            "data.task."
        )
    try:
        signature.bind(**facts, **parameters)
    except TypeError as error:
        keywords = ", ".join(f"{argument}={value!r}" for argument, value in {**facts, **parameters}.items())
        raise InputError(
            f"Cannot call the function of the model {name!r} with the keyword arguments {keywords}: {error}. The "
            f"function has the parameters {signature}. Write def "
            f"{getattr(builder, '__name__', _BUILDER)}({', '.join(facts)}), and give every other parameter a default "
            "or a value in model.parameters."
        ) from error
    try:
        return builder(**facts, **parameters), module
    except InputError:
        raise
    except Exception as error:  # User code may raise anything.
        raise InputError(
            f"Cannot build the model {name!r} for {interface.input} and "
            f"{interface.task.size_fact}={interface.num_classes} with the parameters "
            f"{dict(parameters)}{_place_of(error)}: {explain(error)}. Correct the parameters or the model."
        ) from error


def _load_keras_file(path: str, warn: Callable[[str], None]) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # Keras warns of an optimizer that has taken no step.
            return keras.saving.load_model(path, safe_mode=True)
    except (ValueError, TypeError, OSError):
        pass  # Only the loss or a metric may be custom code: try to load the model without them.
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except (ValueError, TypeError, OSError) as error:
        raise InputError(
            f"Cannot load the model file {path!r}: it contains custom code or is damaged ({explain(error)}). Expected "
            "only layers that are part of Keras. Use a .py file that builds the model."
        ) from error
    warn(
        f"The model {path!r} is compiled with a custom loss or metric, which cannot be loaded. Training ignores the "
        "settings of its compile. To keep them, use a .py file."
    )
    return model
