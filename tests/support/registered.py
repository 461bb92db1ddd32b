"""Models as a registry sees them: files."""

import json
import shutil

import h5py

from tpu_components.core.examples.artifacts import ModelInfo, file_sha256
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.results.export_info import ComparedOn, ExportInfo, FormatFacts, Output


def write_model(directory, weights, export="export"):
    """A model and its export as the registry sees them: files. Returns both folders."""
    model_dir, export_dir = directory / "model", directory / "export"
    for folder in (model_dir, export_dir / "saved_model"):
        folder.mkdir(parents=True, exist_ok=True)
    given = ImageInput((8, 8, 1), "raw")
    info = ModelInfo("digits_cnn", {}, ("a", "b"), given, "classification", "f" * 64, {"seconds": id(directory)})
    info.save(model_dir)
    (model_dir / "architecture.json").write_text("{}")
    (model_dir / "best.weights.h5").write_text(weights)
    (export_dir / "saved_model" / "saved_model.pb").write_text(export)
    latency_ms = float(id(directory))  # Two exports differ in what was measured.
    took = FormatFacts(
        file="model.tflite", bytes=9, score=1.0, agreement=1.0, max_difference=0.0, latency_ms=latency_ms
    )
    ExportInfo(
        model="digits_cnn",
        class_names=("a", "b"),
        task="classification",
        input=given,
        signatures={},
        output=Output("probabilities"),
        dataset_fingerprint="f" * 64,
        compared_on=ComparedOn("test", 9),
        judged="accuracy",
        trained_score=1.0,
        formats={"float": took},
    ).save(export_dir)
    for name in ("model.tflite", "model_int8.tflite"):
        (export_dir / name).write_text(f"{weights} {export}")
    return model_dir, export_dir


def copy_with_weights(model, value, directory):
    """A copy of a trained model all of whose weights are one value, as its training would have written it."""
    shutil.copytree(model, directory)
    weights = directory / "best.weights.h5"

    def fill(_, item):
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":
            item[...] = value

    with h5py.File(weights, "r+") as file:
        file.visititems(fill)
    renew_digest(weights)
    return directory


def renew_digest(file):
    """Write the digest of a changed file of a model into the model's description."""
    raw = json.loads((file.parent / "model.json").read_text())
    raw["digests"][file.name] = file_sha256(file)
    (file.parent / "model.json").write_text(json.dumps(raw))
