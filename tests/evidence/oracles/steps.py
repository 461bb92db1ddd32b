"""The project's training step compared with one by hand: `python -m tests.evidence.oracles.steps tensorflow`."""

import json
import subprocess
import sys
from typing import Any

import numpy as np

from tests.evidence.oracles import training
from tpu_components.core.examples.interface import CorpusInput, ImageInput, Interface
from tpu_components.core.machines import device
from tpu_components.train_model import TrainParams


def _interface(task: str) -> Interface:
    if task == "language_model":
        return Interface(CorpusInput(num_tokens=5, vocabulary_size=7), 7, task)
    scale = {"mean": training.MEAN, "std": training.STD} if task == "regression" else {}
    sizes = {"classification": 4, "multi_label": 3, "regression": 2}
    return Interface(ImageInput((2, 3, 1), "raw"), sizes[task], task, **scale)


def _model(task: str) -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    if task == "language_model":
        start = [keras.Input((5,), dtype="int32"), layers.Embedding(7, 3)]
    else:
        start = [keras.Input((2, 3, 1), dtype="uint8"), layers.Rescaling(1 / 255), layers.Flatten()]
    interface = _interface(task)
    end = [layers.Dense(interface.num_classes, activation=interface.task.activation, bias_initializer="random_normal")]
    if task == "regression":
        end.append(layers.Rescaling(training.STD, training.MEAN))
    return keras.Sequential([*start, *end])


def deviations(backend: str) -> dict[str, float]:
    """How far weights, averages and losses are from those by hand at most, as a share of the greatest of them."""
    device.prepare(backend, "cpu", 1, "float32")
    largest: dict[str, float] = {}
    for task in training.TASKS:
        for optimizer in training.OPTIMIZERS:
            for quantity, deviation in _compare(task, optimizer, jit_compile=backend == "jax").items():
                largest[quantity] = max(largest.get(quantity, 0.0), deviation)
    return largest


def deviations_elsewhere(backend: str) -> dict[str, float]:
    """The same in a process of its own: Keras has one backend in each."""
    done = subprocess.run([sys.executable, "-m", __name__, backend], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def _compare(task: str, optimizer: str, jit_compile: bool) -> dict[str, float]:
    import tensorflow as tf

    from tpu_components.core.models.training_step.compiling import compile_model

    params = TrainParams(
        "by hand",
        epochs=1,
        optimizer=optimizer,
        learning_rate=training.LEARNING_RATE,
        learning_rate_schedule="cosine",
        warmup_epochs=training.WARMUP_STEPS / training.NUM_STEPS,
        weight_decay=0.0 if optimizer == "adam" else training.WEIGHT_DECAY,
        ema_decay=training.EMA_DECAY,
    )
    model = _model(task)
    judged = compile_model(model, _interface(task), params, 1, training.NUM_STEPS, jit_compile)
    start = _named(model.variables, model.variables)
    batches = tf.data.Dataset.from_tensor_slices(training.examples(task)).batch(training.BATCH)
    history = model.fit(batches, shuffle=False, verbose=0).history
    weights, averages, loss = training.train(task, optimizer, start)
    return {
        "loss": abs(history["loss"][0] - loss) / loss,
        f"weights, {optimizer}": _furthest(_named(model.variables, model.variables), weights),
        "averages": _furthest(_named(model.variables, judged), averages),
    }


def _named(variables: Any, values: Any) -> dict[str, np.ndarray]:
    from keras.ops import convert_to_numpy

    return {variable.name: convert_to_numpy(value) for variable, value in zip(variables, values, strict=True)}


def _furthest(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[name] - expected[name]).max() / np.abs(expected[name]).max()) for name in expected)


if __name__ == "__main__":
    print(json.dumps(deviations(sys.argv[1])))
