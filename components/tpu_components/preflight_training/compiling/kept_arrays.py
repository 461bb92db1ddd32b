"""Computes a lower bound on the memory per example of a training step, without compiling the step."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

from tpu_components.core.base.frameworks import jax, jnp
from tpu_components.core.examples.interface import Interface
from tpu_components.core.models.training_step.program import state_of

_BATCH = 8191  # A prime, so that a dimension that it divides comes from the batch.
_PRODUCTS = ("dot_general", "conv_general_dilated")
# The results of these are not kept: they are computed again, or stay inside a kernel.
_UNKEPT = ("checkpoint", "pallas_call")


def least_example_bytes(model: Any, interface: Interface, softens_labels: bool = False) -> int:
    """Return a lower bound on the bytes that each example of a batch needs in a training step on the JAX backend.

    The bytes include the example's inputs, targets and weight, and the results of the forward pass that the backward
    pass needs. The size of these results is estimated in two ways, and the smaller estimate is used:

    - The compiler recomputes cheap results, but not matrix products, so the result of each product is counted. Products
      of two arrays that both grow with the batch, such as the scores of attention, are an exception: if the result is
      larger than both operands together, it is not counted, because the compiler may recompute it. Results inside
      `jax.checkpoint` or a Pallas kernel are not counted either.
    - The compiler keeps at least half of the bytes that JAX keeps for the backward pass. JAX keeps both the argument
      and the result of an activation function, but the compiler needs only one of them.

    If the step cannot be traced, only the example itself is counted.

    Args:
        model: Model after `compile_model`. Its variables may be abstract.
        interface: Input and output of the model.
        softens_labels: Whether augmentation converts labels to probabilities.
    """
    batch, forward = (
        [jax.ShapeDtypeStruct(*each) for each in interface.batch_shapes(_BATCH, with_margin)]
        for with_margin in (True, False)
    )
    if softens_labels:
        forward[1] = jax.ShapeDtypeStruct((_BATCH, interface.num_classes), "float32")
    kept = 0
    with contextlib.suppress(Exception):  # A model's own `train_step` may need other arguments.
        kept = _kept_bytes(model, forward)
    return (sum(map(_bytes, batch)) + kept) // _BATCH


def _kept_bytes(model: Any, batch: Any) -> int:
    """Return a lower bound of the bytes that a step keeps from the forward pass of a batch."""

    def forward(state: Any, batch: Any) -> Any:
        trainable, untrained, optimizer, metrics = state

        def loss(trainable: Any) -> Any:
            return model.compute_loss_and_updates(
                trainable, untrained, metrics, *batch, training=True, optimizer_variables=optimizer
            )[0]

        return jax.vjp(loss, trainable)[1]  # A tree of the arrays that the backward pass needs.

    state = [[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in kind] for kind in state_of(model)]
    traced = jax.make_jaxpr(forward)(state, batch).jaxpr
    return min(_products_bytes(traced), _grown_bytes(variable.aval for variable in traced.outvars) // 2)


def _products_bytes(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in _PRODUCTS:
            result = _grown_bytes(variable.aval for variable in equation.outvars)
            operands = [_grown_bytes([variable.aval]) for variable in equation.invars]
            total += 0 if all(operands) and result > sum(operands) else result
        elif name not in _UNKEPT:
            inner = [_products_bytes(each) for each in _inner_jaxprs(equation)]
            # Only one branch of a condition is executed.
            total += (min(inner, default=0) if name == "cond" else sum(inner)) * equation.params.get("length", 1)
    return total


def _inner_jaxprs(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        for each in value if isinstance(value, (list, tuple)) else (value,):
            inner = getattr(each, "jaxpr", each)
            if hasattr(inner, "eqns"):
                yield inner


def _grown_bytes(arrays: Iterable[Any]) -> int:
    """Return the bytes of the floating-point arrays whose size depends on the batch.

    Masks do not count, because they can be computed again.
    """
    return sum(
        _bytes(array)
        for array in arrays
        if jnp.issubdtype(array.dtype, jnp.floating) and any(size and size % _BATCH == 0 for size in array.shape)
    )


def _bytes(array: Any) -> int:
    size: int = math.prod(array.shape) * array.dtype.itemsize
    return size
