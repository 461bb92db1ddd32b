"""Models as a registry sees them: files."""

import json

from components.artifacts import ModelInfo
from components.interface import ImageInput


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
    (export_dir / "export.json").write_text(json.dumps({"latency_ms": id(directory)}))
    for name in ("model.tflite", "model_int8.tflite"):
        (export_dir / name).write_text(f"{weights} {export}")
    return model_dir, export_dir
