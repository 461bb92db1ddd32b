"""Sharding of a model's weights over devices: replicated, or fully sharded.

If weights are fully sharded, each device keeps a part of every large weight and of its optimizer state. A step
all-gathers each weight before use, and reduce-scatters its gradient.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import jax, keras
from tpu_components.core.machines.device import Device

REPLICATED, FULLY_SHARDED = "replicated", "fully_sharded"
SHARDINGS = (REPLICATED, FULLY_SHARDED)
BATCH_AXIS = "batch"  # Keras's name for the axis along which data-parallel devices share a batch.
_LEAST_VALUES = 1 << 12  # Smaller variables are replicated.


def shard_axis(shape: Sequence[int], num_devices: int) -> int | None:
    """Return the axis along which to shard a variable: the longest axis that the devices can share equally.

    Return None if there is no such axis, or if the variable is small.

    Example:
        >>> shard_axis((512, 1024), 8), shard_axis((511, 1023), 8), shard_axis((64,), 8)
        (1, None, None)
    """
    if math.prod(shape) < max(_LEAST_VALUES, num_devices):
        return None
    fitting = [axis for axis, size in enumerate(shape) if size % num_devices == 0]
    return max(fitting, key=lambda axis: shape[axis], default=None)


def array_sharding(mesh: Any, axis: int | None) -> Any:
    """Return the `NamedSharding` of an array on a mesh, or None if there is no mesh.

    The array is sharded along `axis`, or replicated if `axis` is None.
    """
    from jax.sharding import NamedSharding, PartitionSpec

    if mesh is None:
        return None
    return NamedSharding(mesh, PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, BATCH_AXIS))


def variable_sharding(mesh: Any, shape: Sequence[int], sharding: str) -> Any:
    """Return the `NamedSharding` of a variable on a mesh, or None if there is no mesh.

    Args:
        mesh: A `jax.sharding.Mesh` or None.
        shape: Shape of the variable.
        sharding: Value of `TrainParams.sharding`.
    """
    is_sharded = mesh is not None and sharding == FULLY_SHARDED
    return array_sharding(mesh, shard_axis(shape, mesh.size) if is_sharded else None)


def fully_shard(device: Device) -> Device:
    """Make Keras shard large variables over a device's replicas, and return the device with this distribution.

    A device with a single replica is returned unchanged.

    Raises:
        InputError: If the backend is not JAX.
    """
    if device.backend != "jax":
        raise InputError(
            f"sharding=fully_sharded requires backend=jax. Received: backend={device.backend}. Change one of them."
        )
    if device.distribution is None:
        return device

    class FullySharded(keras.distribution.DataParallel):
        """DataParallel distribution with sharded variables."""

        def get_variable_layout(self, variable: Any) -> Any:
            """Return the sharding of a variable."""
            if getattr(variable, "_layout", None) is not None:
                return variable._layout
            axis = shard_axis(variable.shape, self.device_mesh.devices.size)
            named = [self.batch_dim_name if place == axis else None for place in range(len(variable.shape))]
            return keras.distribution.TensorLayout(named, self.device_mesh)

    distribution = FullySharded(device_mesh=device.distribution.device_mesh, auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    return dataclasses.replace(device, distribution=distribution)


def compute_dtypes(model: Any) -> list[str]:
    """Return the dtype of each trainable variable while it is sent between the devices of a fully sharded model.

    If all layers that use a variable have the same compute dtype, the variable is sent in this dtype, otherwise in its
    own dtype. A variable with a regularizer is always sent in its own dtype. With mixed_bfloat16, the compute dtype
    halves memory and traffic. The stored variable and the optimizer state keep their dtypes.
    """
    readers: dict[int, set[str]] = {}
    for layer in model._flatten_layers():
        for variable in layer._trainable_variables:
            is_plain = variable._autocast and variable.regularizer is None
            readers.setdefault(id(variable), set()).add(layer.compute_dtype if is_plain else variable.dtype)
    types = [readers.get(id(variable), set()) for variable in model.trainable_variables]
    return [
        next(iter(kinds)) if len(kinds) == 1 else variable.dtype
        for kinds, variable in zip(types, model.trainable_variables, strict=True)
    ]


@contextlib.contextmanager
def gathering_weights(model: Any, mesh: Any) -> Iterator[None]:
    """Make a model's training step gather each sharded weight on all devices before using the weight.

    Trace the training step in the `with` block. After the block, the model is unchanged.

    Args:
        model: A keras.Model, whose `compute_loss_and_updates` is wrapped.
        mesh: Devices that store parts of the weights.
    """
    plain = model.compute_loss_and_updates
    dtypes = compute_dtypes(model)

    def compute(trainable_variables: Sequence[Any], *others: Any, **options: Any) -> Any:
        wholes = [_gather(value, dtype, mesh) for value, dtype in zip(trainable_variables, dtypes, strict=True)]
        return plain(wholes, *others, **options)

    model.compute_loss_and_updates = compute
    try:
        yield
    finally:
        model.compute_loss_and_updates = plain


def _gather(value: Any, dtype: str, mesh: Any) -> Any:
    """Return a weight, gathered on all devices and cast to a dtype. Its gradient is sharded like the weight.

    A weight that is not sharded keeps its dtype.
    """
    part = variable_sharding(mesh, value.shape, FULLY_SHARDED)

    @jax.custom_vjp
    def whole(value: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, array_sharding(mesh, None))

    def backward(_: None, gradient: Any) -> tuple[Any]:
        return (jax.lax.with_sharding_constraint(gradient, part),)

    whole.defvjp(lambda value: (whole(value), None), backward)
    if part.is_fully_replicated:
        return whole(value)
    # Cast before gathering, to transfer fewer bytes than in float32.
    return whole(jax.lax.with_sharding_constraint(value.astype(dtype), part))
