"""Wraps Keras's training step: augments the batch before it and averages the weights after it.

The wrappers are around the model's `train_step`, which `fit` compiles; they are not saved with the model. Two further
changes make several replicas equal to one: synchronised batch normalisation and summed gradients of embedding rows.
"""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

from tpu_components.core.models.step.augmentation import Draws, augment, check_images
from tpu_components.core.models.step.hyperparameters import TrainParams


def prepare_batches(model: Any, settings: TrainParams, num_replicas: int, are_larger: bool = False) -> None:
    """Augment every batch that the compiled model trains on, if `settings` say so.

    Args:
        model: Compiled model.
        settings: Augmentations to apply.
        num_replicas: Number of replicas that share a batch.
        are_larger: Whether images have a margin around the model's input.

    Raises:
        InputError: If the model's input cannot be augmented.
    """
    import keras

    check_images(settings, model.input_shape)
    if not settings.moves_pixels and not settings.softens_labels and not are_larger:
        return
    uses_jax = keras.backend.backend() == "jax"
    # A variable, so that the program does not depend on the seed. Keras has seeded Python's generator.
    seed = model.optimizer.add_variable(
        (),
        keras.initializers.Constant(random.randrange(2**31)),
        dtype="int32",
        aggregation="only_first_replica",
        name="augmentation_seed",
    )
    places = _places(model.optimizer.variables)
    groups = num_replicas if uses_jax else 1  # TensorFlow's step gets the batch of one replica.
    plain = model.train_step

    def prepare(data: Any, seed_value: Any, step: Any) -> Any:
        images, labels, weights = data
        draws = Draws(seed_value, step)
        size = model.input_shape[1:3]
        return *augment(images, labels, settings, draws, model.output_shape[-1], groups, size), weights

    @functools.wraps(plain)  # Keeps the program's name.
    def jax_step(state: Any, data: Any) -> Any:
        step = state[2][places[id(_steps_taken(model))]]
        return plain(state, prepare(data, state[2][places[id(seed)]], step))

    def tensorflow_step(data: Any) -> Any:
        return plain(prepare(data, seed.value, _steps_taken(model).value))

    model.train_step = jax_step if uses_jax else tensorflow_step


def sum_repeated_rows(optimizer: Any) -> None:
    """Sum the gradients of an embedding row that occurs several times in a batch, as on JAX.

    TensorFlow returns them as separate rows with indices, and Keras 3.15 passes these to the optimizer. Adam would then
    use the sum of squares instead of the square of the sum.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    plain = optimizer.apply

    @functools.wraps(plain)
    def apply(gradients: Sequence[Any], variables: Sequence[Any] | None = None) -> Any:
        dense = [tf.convert_to_tensor(item) if isinstance(item, tf.IndexedSlices) else item for item in gradients]
        return plain(dense, variables)

    optimizer.apply = apply


def synchronize_normalization(model: Any, num_replicas: int) -> None:
    """Compute batch normalisation over the batch of all replicas, so that their number does not change the result.

    On JAX this is always so, since the batch is one array. On TensorFlow each replica would normalise by its part of
    the batch, and the statistics of the first replica would be kept. Keras's option `synchronized` is not used: it
    ignores masked batches, subtracts large squares, and is saved with the model.
    """
    import keras

    if num_replicas > 1 and keras.backend.backend() == "tensorflow":
        for layer in _batch_normalization(model):
            vars(layer).pop("_moments", None)  # Set by an earlier stage.
            layer._moments = functools.partial(_moments_of_all_replicas, layer, layer._moments)


def count_synchronized_layers(model: Any, num_replicas: int) -> int:
    """Count the batch-normalisation layers whose statistics span several replicas."""
    return len(_batch_normalization(model)) if num_replicas > 1 else 0


def _batch_normalization(model: Any) -> list[Any]:
    import keras

    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]


def _moments_of_all_replicas(layer: Any, plain: Callable[[Any, Any], Any], inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return mean and variance over all replicas and all axes but the layer's own, of values that the mask keeps."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:  # Not in a training step of several replicas.
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


def average_weights(model: Any, decay: float) -> Sequence[Any]:
    """Keep a running average of every weight of the compiled model, including batch-normalisation statistics.

    After t steps, the next step keeps `min(decay, t / (t + 9))` of the average. So the average starts as the weight
    itself, and forgets the initial weights within the first hundred steps.

    Returns:
        The optimizer's variables with the averages, in the order of `model.variables`. A variable that is no weight,
        such as dropout's random state, takes the place of its average.
    """
    import keras

    weights = {i: v for i, v in enumerate(model.variables) if keras.backend.is_float_dtype(v.dtype)}
    averages = {
        i: model.optimizer.add_variable(
            weight.shape, dtype=weight.dtype, aggregation="only_first_replica", name=f"average_{i}"
        )
        for i, weight in weights.items()
    }
    plain = model.train_step
    places = _places(model.optimizer.variables)
    trained, others = _places(model.trainable_variables), _places(model.non_trainable_variables)

    def updated(average: Any, weight: Any, step: Any) -> Any:
        steps = keras.ops.cast(step, "float32")
        kept = keras.ops.cast(keras.ops.minimum(decay, steps / (steps + 9)), average.dtype)
        return weight + kept * (average - weight)

    @functools.wraps(plain)  # Keeps the program's name.
    def jax_step(state: Any, data: Any) -> Any:
        step = state[2][places[id(_steps_taken(model))]]
        logs, (trained_values, other_values, optimizer_values, metric_values) = plain(state, data)
        optimizer_values = list(optimizer_values)
        for i, weight in weights.items():
            value = trained_values[trained[id(weight)]] if id(weight) in trained else other_values[others[id(weight)]]
            place = places[id(averages[i])]
            optimizer_values[place] = updated(optimizer_values[place], value, step)
        return logs, (trained_values, other_values, optimizer_values, metric_values)

    def tensorflow_step(data: Any) -> Any:
        step = keras.ops.copy(_steps_taken(model).value)
        logs = plain(data)
        for i, weight in weights.items():
            averages[i].assign(updated(averages[i].value, weight.value, step))
        return logs

    model.train_step = jax_step if keras.backend.backend() == "jax" else tensorflow_step
    return [averages.get(i, variable) for i, variable in enumerate(model.variables)]


def _steps_taken(model: Any) -> Any:
    """Return the variable that counts steps; `iterations` counts updates, fewer where gradients are accumulated."""
    return model.optimizer._iterations


def _places(variables: Sequence[Any]) -> dict[int, int]:
    return {id(variable): place for place, variable in enumerate(variables)}
