"""Wrappers around Keras's training step, for augmentation, class weights and running averages of weights.

The wrappers apply augmentation and class weights before the step, and average the weights after it. They replace the
model's `train_step` and are not saved with the model. The other functions of this module make several replicas give
the same result as one, and TensorFlow the same result as JAX.
"""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.frameworks import keras, ops, tf
from tpu_components.core.models.training_step.augmentation import Draws, augment
from tpu_components.core.models.training_step.hyperparameters import TrainParams


def extend_step(
    model: Any,
    params: TrainParams,
    num_replicas: int,
    has_margin: bool = False,
    class_weights: Sequence[float] = (),
) -> Sequence[Any]:
    """Make a compiled model augment every batch and average its weights after every step, if `params` request it.

    With `ema_decay`, every float variable has a running average, including batch-normalisation statistics. After t
    steps, the next step keeps `min(ema_decay, t / (t + 9))` of the average. So the average starts equal to the weight,
    and the effect of the initial weights fades within the first hundred steps.

    Args:
        model: Compiled model.
        params: Augmentations to apply, and `ema_decay`.
        num_replicas: Number of replicas that share a batch.
        has_margin: Whether images are larger than the model's input, as a margin for random crops.
        class_weights: For each class, the factor by which the sample weights of its examples are multiplied. Empty
            means 1 for every class. As in Keras, an image that mixup mixes gets the weight of the class with the larger
            share.

    Returns:
        The variables to validate and save, in the order of `model.variables`: the averages if `ema_decay` is set,
        otherwise the variables themselves. Variables that are not floats, such as dropout's random state, have no
        average.
    """
    weights = model.variables
    optimizer = model.optimizer
    plain = model.train_step
    uses_jax = keras.backend.backend() == "jax"
    augments = params.moves_pixels or params.softens_labels or has_margin
    add_variable = functools.partial(optimizer.add_variable, aggregation="only_first_replica")
    if augments:
        # A variable, so that the program does not depend on the seed. Keras has seeded Python's `random`.
        initial = keras.initializers.Constant(random.randrange(2**31))
        seed = add_variable((), initial, dtype="int32", name="augmentation_seed")
    averages = {
        i: add_variable(weight.shape, dtype=weight.dtype, name=f"average_{i}")
        for i, weight in enumerate(weights)
        if params.ema_decay and keras.backend.is_float_dtype(weight.dtype)
    }

    def prepare(data: Any) -> Any:
        images, labels, sample_weights = data
        if class_weights:
            table = ops.convert_to_tensor(np.array(class_weights, np.float32))
            sample_weights = sample_weights * ops.take(table, labels)
        if not augments:
            return images, labels, sample_weights
        # `iterations` would count updates, which are fewer than the steps if gradients are accumulated.
        draws = Draws(seed.value, optimizer._iterations.value)
        groups = num_replicas if uses_jax else 1  # TensorFlow's step gets the batch of one replica.
        size = model.input_shape[1:3]
        return *augment(images, labels, params, draws, model.output_shape[-1], groups, size), sample_weights

    def average(steps: Any) -> None:
        """Update the running averages of the weights after a step. `steps` is the number of preceding steps."""
        steps = ops.cast(steps, "float32")
        kept = ops.minimum(params.ema_decay, steps / (steps + 9))
        for i, variable in averages.items():
            weight = weights[i].value
            variable.assign(weight + ops.cast(kept, variable.dtype) * (variable.value - weight))

    @functools.wraps(plain)  # Keeps the program's name.
    def jax_step(state: Any, data: Any) -> Any:
        with keras.StatelessScope(state_mapping=zip(optimizer.variables, state[2], strict=True)):
            data = prepare(data)
            steps = optimizer._iterations.value
        logs, state = plain(state, data)
        variables = [*model.trainable_variables, *model.non_trainable_variables, *optimizer.variables]
        values = [*state[0], *state[1], *state[2]]
        with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
            average(steps)
            return logs, (*state[:2], [variable.value for variable in optimizer.variables], state[3])

    @functools.wraps(plain)
    def tensorflow_step(data: Any) -> Any:
        steps = ops.copy(optimizer._iterations.value)
        logs = plain(prepare(data))
        average(steps)
        return logs

    if augments or averages or class_weights:
        model.train_step = jax_step if uses_jax else tensorflow_step
    return [averages.get(i, weight) for i, weight in enumerate(weights)]


def sum_repeated_rows(optimizer: Any) -> None:
    """Make an optimizer sum the gradients of an embedding row that occurs several times in a batch, as on JAX.

    TensorFlow returns one gradient per occurrence, and Keras 3.15 passes these to the optimizer. Adam would then use
    the sum of squares instead of the square of the sum.
    """
    if keras.backend.backend() != "tensorflow":
        return
    plain = optimizer.apply

    @functools.wraps(plain)
    def apply(gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> Any:
        dense = [tf.convert_to_tensor(item) if isinstance(item, tf.IndexedSlices) else item for item in gradients]
        return plain(dense, variables)

    optimizer.apply = apply


def clip_after_sum(optimizer: Any, num_replicas: int) -> None:
    """Make an optimizer clip the gradients of the whole batch, as on JAX and with one replica.

    With TensorFlow, Keras clips each replica's part before it sums the parts, so the sum can exceed the limit.
    """
    if keras.backend.backend() != "tensorflow" or num_replicas == 1:
        return
    clip = optimizer._clip_gradients
    add_up = optimizer._all_reduce_sum_gradients

    def add_up_and_clip(gradients_and_variables: Any) -> Any:
        gradients, variables = zip(*add_up(gradients_and_variables), strict=True)
        return list(zip(clip(gradients), variables, strict=True))

    optimizer._clip_gradients = lambda gradients: gradients
    optimizer._all_reduce_sum_gradients = add_up_and_clip


def synchronize_normalization(model: Any, num_replicas: int) -> None:
    """Make batch normalisation use the batch of all replicas, so that their number does not change the result.

    JAX always does this, because the batch is one array. On TensorFlow, each replica would normalise by its part of the
    batch, and only the statistics of the first replica would be kept. Keras's option `synchronized` is not used,
    because it has no effect on batches with a mask, loses precision by subtracting large squares, and is saved with the
    model.
    """
    if num_replicas > 1 and keras.backend.backend() == "tensorflow":
        for layer in _batch_normalization(model):
            vars(layer).pop("_moments", None)  # Set by an earlier stage.
            layer._moments = functools.partial(_moments_of_all_replicas, layer, layer._moments)


def count_synchronized_layers(model: Any, num_replicas: int) -> int:
    """Count the batch-normalisation layers whose statistics span several replicas."""
    return len(_batch_normalization(model)) if num_replicas > 1 else 0


def _batch_normalization(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def _moments_of_all_replicas(layer: Any, plain: Callable[[Any, Any], Any], inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance of unmasked values, over all replicas and over all axes except the layer's `axis`."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:  # Not a training step of several replicas.
        return plain(inputs, mask)

    def add_up(*values: Any) -> Any:
        sums = [tf.reduce_sum(value, layer._reduction_axes, keepdims=True) for value in values]
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, sums)

    weights = tf.ones_like(inputs)
    if mask is not None:
        weights *= tf.cast(tf.expand_dims(mask, -1), inputs.dtype)
    count, total = add_up(weights, weights * inputs)
    mean = tf.math.divide_no_nan(total, count)
    # A second sum of squared deviations, because the difference of two large squares would lose precision.
    (squares,) = add_up(weights * tf.square(inputs - mean))
    variance = tf.math.divide_no_nan(squares, count)
    return tf.squeeze(mean, layer._reduction_axes), tf.squeeze(variance, layer._reduction_axes)
