"""The project's step with what Keras names, beside Keras's own `fit`, in float64.

`python -m tests.evidence.oracles.keras_names jax` prints the largest distance of a weight.
"""

import json
import sys
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.machines import device
from tpu_components.core.models.training_step.compiling import compile_model
from tpu_components.core.models.training_step.keras_names import class_of, keras_classes
from tpu_components.train_model import TrainParams

STEPS, EPOCHS, BATCH = 10, 5, 8
_SCHEDULES = {
    "exponentialdecay": {"decay_rate": 0.5, "decay_steps": 7},
    "inversetimedecay": {"decay_rate": 0.5, "decay_steps": 7},
    "cosinedecayrestarts": {"first_decay_steps": 7},
    "piecewiseconstantdecay": {"boundaries": [10], "values": [0.01, 0.001]},
    "polynomialdecay": {"decay_steps": 50},
    "cosinedecay": {"decay_steps": 50},
}
_TAKES_NUMBERS = ("sparsecategoricalcrossentropy", "categoricalgeneralizedcrossentropy")


def build() -> Any:
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4, 4, 1), dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Conv2D(4, 2),
            layers.Flatten(),
            layers.Dense(8, activation="relu"),
            layers.Dense(3, activation="softmax"),
        ]
    )


def examples() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, STEPS * BATCH).astype(np.int32)
    return (rng.integers(0, 80, (len(labels), 4, 4, 1)) + labels[:, None, None, None] * 80).astype(np.uint8), labels


def compare(kind: str, name: str, is_jax: bool) -> float:
    """How far weights are apart after 50 steps at most: with clipping, two steps for an update, weighted examples."""
    import keras

    own = {"optimizer": "adam", "optimizer_parameters": {"global_clipnorm": 1.0, "gradient_accumulation_steps": 2}}
    found = class_of(kind, name)
    optimizer, rate, loss = keras.optimizers.Adam, 0.01, "sparse_categorical_crossentropy"
    if kind == "optimizer":
        own[kind], optimizer = name, found
    elif kind == "loss":
        own[kind], loss = name, found()
    else:
        own |= {kind: name, "schedule_parameters": _SCHEDULES[name]}
        values = name == "piecewiseconstantdecay"
        rate = found(**({} if values else {"initial_learning_rate": rate}), **_SCHEDULES[name])
    ours, theirs = build(), build()
    settings = TrainParams("m", epochs=EPOCHS, learning_rate=0.01, **own)
    compile_model(ours, Interface(ImageInput((4, 4, 1), "raw"), 3), settings, 1, STEPS, is_jax)
    more = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    more |= {"weight_decay": 0.0} if name in ("adamw", "muon") else {}
    more |= {"adam_weight_decay": 0.0} if name == "muon" else {}
    theirs.compile(optimizer(rate, **own["optimizer_parameters"], **more), loss, jit_compile=is_jax)
    # As Keras says a user may; `fit` of 3.15 builds it in a graph, where ScheduleFreeAdamW cannot copy the weights.
    theirs.optimizer.build(theirs.trainable_variables)
    images, labels = examples()
    weights = np.resize([1.0, 0.0, 2.5, 0.3], len(labels))
    takes_numbers = kind != "loss" or name in _TAKES_NUMBERS
    targets = labels if takes_numbers else np.eye(3, dtype=np.float32)[labels]
    for model, wanted in ((ours, labels), (theirs, targets)):
        model.fit(images, wanted, BATCH, EPOCHS, verbose=0, shuffle=False, sample_weight=weights)
    pairs = zip(ours.get_weights(), theirs.get_weights(), strict=True)
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def main(backend: str) -> dict[str, dict[str, float | str]]:
    """The distance of everything that Keras has, or why it is refused."""
    device.prepare(backend, "cpu", 1, "float32")
    import keras

    if backend == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    said: dict[str, dict[str, float | str]] = {}
    for kind in ("optimizer", "learning_rate_schedule", "loss"):
        for name in keras_classes(kind):
            try:
                found: float | str = compare(kind, name, backend == "jax")
            except InputError as error:
                found = str(error)
            said.setdefault(kind, {})[name] = found
    return said


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
