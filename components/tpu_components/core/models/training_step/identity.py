"""Digest that identifies a training step. Preflight and training compute the same digest, even on different machines.

The text of the compiled program cannot identify a step, because it depends on the devices and on the version of JAX.
Instead, the digest covers the model's configuration and the hyper-parameters that determine the program. It does not
cover the code of custom layers.
"""

from typing import Any

from tpu_components.core.base.digest import digest_of
from tpu_components.core.examples.interface import Interface
from tpu_components.core.models.training_step.hyperparameters import TrainParams

# Hyper-parameters that change the operations of a step, not only its constants.
_DECISIVE = (
    *("batch_size_per_replica", "optimizer", "optimizer_parameters", "learning_rate_schedule", "schedule_parameters"),
    *("loss", "loss_parameters", "random_flip", "random_crop_pixels", "random_resized_crop", "sharding"),
)
_SWITCHES = ("weight_decay", "mixup_alpha", "label_smoothing", "ema_decay", "weighs_classes")  # Any value above 0.
_LEFT_OUT = ("module", "trainable", "build_config")  # Module of the code, frozen layers, and redundant shapes.


def step_digest(model: Any, interface: Interface, params: TrainParams, backend: str, precision: str) -> str:
    """Return the SHA-256, in hexadecimal, of all settings that determine a training step's program on each device.

    The names of layers, the choice of frozen layers and the number of devices do not change the digest.

    Args:
        model: Model after `compile_model`. Its variables may have shapes but no values.
        interface: Input and output of the model.
        params: Hyper-parameters of the training.
        backend: `jax` or `tensorflow`.
        precision: Keras dtype policy.
    """
    layers = model._flatten_layers(include_self=True)
    names = {layer.name: f"layer {i}" for i, layer in enumerate(layers)}
    decisive = {name: getattr(params, name) for name in _DECISIVE}
    switches = [bool(getattr(params, name)) for name in _SWITCHES]
    optimizer = type(model.optimizer).__name__
    shapes = interface.batch_shapes(params.batch_size_per_replica)
    metrics = sorted(params.metrics)
    step = [backend, precision, optimizer, decisive, switches, metrics, shapes]
    return digest_of([step, _without_names(model.get_config(), names)])


def _without_names(value: Any, names: dict[str, str]) -> Any:
    """Return a model's configuration as JSON, with numbers instead of the names of layers.

    Names depend on the models that the process built before. Arrays, such as means of a data set, are left out.
    """
    if isinstance(value, dict):
        return {
            names.get(key, str(key)): _without_names(item, names) for key, item in value.items() if key not in _LEFT_OUT
        }
    if isinstance(value, list | tuple):
        return [_without_names(item, names) for item in value]
    if isinstance(value, str):
        return names.get(value, value)
    return value if value is None or isinstance(value, bool | int | float) else type(value).__name__
