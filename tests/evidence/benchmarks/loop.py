"""The training loop on the CPU with JAX: steps per second, and the time to the first step.

`python -m tests.evidence.benchmarks.loop train|fit|start RECORDS MODEL [OPTIONS]` measures one way in a process of its
own, and prints JSON. The model `dense` is so small that the loop is all there is: one Dense layer, batch 32.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 32
_DENSE = """
import keras
def build_model(image_shape, num_classes):
    return keras.Sequential([
        keras.Input(image_shape, dtype="uint8"), keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
        keras.layers.Dense(num_classes, activation="softmax")])
"""
_SKIPPED = 2  # The second epoch bears what the end of the first has loaded.
_PARTS = ("compute_seconds", "input_seconds", "checkpoint_seconds", "host_seconds")


def write_noise(folder: Path, num_examples: int) -> Path:
    """Images of 8×8 pixels, a tenth of them to validate, as records."""
    from tpu_components.create_tfrecords import WriteParams, write_records

    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (num_examples, 8, 8, 1), np.uint8)
    folder.mkdir()
    np.savez(folder / "noise.npz", x_train=images, y_train=draw.integers(0, 10, num_examples))
    params = WriteParams(f"npz:{folder / 'noise.npz'}", validation_fraction=0.1, test_fraction=0)
    write_records(params, folder / "records")
    return folder / "records"


def _model_file(name: str, folder: Path) -> str:
    """A model's name for `build_model`."""
    if name != "dense":
        return name
    (folder / "dense.py").write_text(_DENSE)
    return str(folder / "dense.py")


def train(records: Path, model: str, **changes: Any) -> dict[str, float]:
    """Steps/s of `train_model`: validation, checkpoints, metrics and progress included, from the third epoch on."""
    from tpu_components.core.examples.artifacts import load_history
    from tpu_components.train_model import TrainParams, train_model

    settings = {"epochs": 7, "batch_size_per_replica": BATCH, "backend": "jax", "accelerator": "cpu", **changes}
    with tempfile.TemporaryDirectory() as folder:
        params = TrainParams(_model_file(model, Path(folder)), **settings)
        result = train_model(params, records, Path(folder) / "model")
        history = load_history(Path(folder) / "model")[_SKIPPED:]
    steps = result.steps / params.epochs * len(history)
    passed = sum(value for epoch in history for name, value in epoch.items() if name in _PARTS and value is not None)
    return {"rate": steps / passed, "without_ends_of_epochs": steps / sum(epoch["seconds"] or 0 for epoch in history)}


def fit(records: Path, model: str) -> dict[str, float]:
    """Steps/s of `fit` on tf.data, the loss looked at after every step, as training was before it had its loop."""
    from tpu_components.core.examples import records as records_of
    from tpu_components.core.examples.artifacts import TRAIN, Manifest
    from tpu_components.core.examples.feeding import Cut, InMemoryReader
    from tpu_components.core.machines import device
    from tpu_components.core.models.lookup import build_model

    device.prepare("jax", "cpu", 1, "float32")
    import keras

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            assert np.isfinite(float((logs or {})["loss"]))

    manifest = Manifest.load(records)
    with tempfile.TemporaryDirectory() as folder:
        built = build_model(_model_file(model, Path(folder)), manifest.interface, {})
    built.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    examples = records_of.load_split(records, manifest, TRAIN)
    reader = InMemoryReader(examples, Cut(len(examples.labels), BATCH), seed=0)
    for epoch in range(3):
        batches = reader.batches(epoch, 0)
        start = time.perf_counter()
        built.fit(batches, verbose=0, callbacks=[Look()], shuffle=False)
        rate = int(batches.cardinality()) / (time.perf_counter() - start)
    return {"rate": rate}


def start(records: Path, model: str, checkpoints: str) -> dict[str, float]:
    """Seconds to the first step, with the programs that lie beside the checkpoints, and none of these."""
    from tpu_components.train_model import TrainParams, train_model

    for path in Path(checkpoints).glob("*.npz"):
        path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        settings = {"epochs": 1, "batch_size_per_replica": BATCH, "backend": "jax", "accelerator": "cpu"}
        params = TrainParams(_model_file(model, Path(folder)), **settings)
        result = train_model(params, records, Path(folder) / "model", Path(checkpoints))
    return {"seconds": result.first_step_seconds}


def main() -> None:
    """Measure what is asked for."""
    way, records, model, *options = sys.argv[1:]
    changes = json.loads(options[0]) if options else {}
    print(json.dumps({"train": train, "fit": fit, "start": start}[way](Path(records), model, **changes)))


if __name__ == "__main__":
    main()
