"""Steps per second of a model so small that the loop is all there is: one Dense layer, batch 32, JAX on the CPU.

`python -m tests.benchmarks.loop trainer|fit RECORDS` measures one way in a process of its own, and prints JSON.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

BATCH = 32
NUM_EXAMPLES = 100_000
_EPOCHS = 5
_MODEL = """
import keras
def build_model(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
        keras.layers.Dense(num_classes, activation="softmax")])
"""


def write_noise(work: Path) -> Path:
    """NUM_EXAMPLES images of 8×8 pixels, and as many as a tenth of them to validate, as records."""
    from components.create_tfrecords import WriteParams, write_records

    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (NUM_EXAMPLES, 8, 8, 1), np.uint8)
    np.savez(work / "noise.npz", x_train=images, y_train=draw.integers(0, 10, NUM_EXAMPLES))
    params = WriteParams(f"npz:{work / 'noise.npz'}", validation_fraction=0.1, test_fraction=0)
    write_records(params, work / "noise")
    return work / "noise"


def train(records: Path, **changes: object) -> dict[str, float]:
    """Steps/s of `train_model`, validation, checkpoints, metrics and progress included, without the first epoch."""
    from components.artifacts import load_history
    from components.train_model import TrainParams, train_model

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "dense.py"
        model.write_text(_MODEL)
        params = TrainParams(
            str(model), epochs=_EPOCHS, batch_size_per_replica=BATCH, backend="jax", accelerator="cpu", **changes
        )
        result = train_model(params, records, Path(folder) / "model")
        history = load_history(Path(folder) / "model")[1:]
    steps = result.steps / _EPOCHS * len(history)
    passed = sum(value for epoch in history for name, value in epoch.items() if name in _PARTS and value is not None)
    trained = sum(epoch["seconds"] or 0.0 for epoch in history)
    return {"steps_per_second": steps / passed, "without_ends_of_epochs": steps / trained}


_PARTS = ("compute_seconds", "input_seconds", "checkpoint_seconds", "host_seconds")


def fit(records: Path) -> dict[str, float]:
    """Steps/s of `fit` on tf.data, the loss looked at after every step, as training was before it had its loop."""
    from components import device
    from components import records as records_of
    from components.artifacts import TRAIN, Manifest
    from components.feeding import InMemoryReader

    device.prepare("jax", "cpu", 1, "float32")
    import keras

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            assert np.isfinite(float((logs or {})["loss"]))

    names: dict[str, object] = {}
    exec(_MODEL, names)
    manifest = Manifest.load(records)
    model = names["build_model"]((8, 8, 1), 10)  # type: ignore[operator]
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    reader = InMemoryReader(records_of.load_split(records, manifest, TRAIN), BATCH, seed=0)
    rates = []
    for epoch in range(2):
        batches = reader.batches(epoch, 0)
        start = time.perf_counter()
        model.fit(batches, verbose=0, callbacks=[Look()], shuffle=False)
        rates.append(int(batches.cardinality()) / (time.perf_counter() - start))
    return {"steps_per_second": rates[-1]}


def main() -> None:
    """Measure what is asked for."""
    way, records, *changes = sys.argv[1:]
    print(
        json.dumps(fit(Path(records)) if way == "fit" else train(Path(records), **json.loads((changes or ["{}"])[0])))
    )


if __name__ == "__main__":
    main()
