"""Rebuilds the model, writes every format, has a fresh process judge them, and only then lets them out."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from components import device as devices
from components import progress, records, storage
from components.artifacts import (
    EXPORT_FILE,
    FLOAT_TFLITE_FILE,
    IMAGE_FEATURE,
    INT8_TFLITE_FILE,
    LABEL_FEATURE,
    SAVED_MODEL_DIR,
    TRAIN,
    Manifest,
    ModelInfo,
)
from components.errors import InputError
from components.export_model import verification
from components.export_model.params import ExportParams, ExportResult

_STEP = "export_model"
_BATCH_SIZE = 256


def export_model(params: ExportParams, records_dir: Path, model_dir: Path, output: Path) -> ExportResult:
    """Export a trained model for CPU serving.

    Args:
        params: How close the exported model must be.
        records_dir: What create_tfrecords wrote: calibration from its train split, comparison on `params.split`.
        model_dir: What train_model wrote.
        output: Gets saved_model/, model.tflite, model_int8.tflite and export.json; appears whole or not at all.

    Raises:
        InputError: If a model or data set is damaged, or a format disagrees with the trained model beyond the
            tolerance.
    """
    storage.require_output(output, EXPORT_FILE)
    manifest = Manifest.load(records_dir)
    info = ModelInfo.load(model_dir)
    manifest.split(params.split)
    if (info.class_names, info.image_shape) != (manifest.class_names, manifest.image_shape):
        raise InputError(
            f"The model in {model_dir} does not fit the data set in {records_dir}: expected "
            f"images {info.image_shape} of {len(info.class_names)} classes, received {manifest.image_shape} of "
            f"{len(manifest.class_names)}."
        )
    devices.prepare("tensorflow", "cpu", 1, "float32")
    from components.models.loading import load_trained_model

    model = load_trained_model(model_dir)
    with storage.staged_directory(output) as staged:
        with _quiet():
            _write_saved_model(model, info, staged / SAVED_MODEL_DIR)
            float_input = load_trained_model(model_dir, input_dtype="float32")
            calibration = _calibration_images(params, records_dir, manifest)
            (staged / FLOAT_TFLITE_FILE).write_bytes(_convert(float_input, info.image_shape, None))
            (staged / INT8_TFLITE_FILE).write_bytes(_convert(float_input, info.image_shape, calibration))
        with tempfile.TemporaryDirectory(prefix="export-") as work:
            trained_accuracy = _write_expectations(params, model, records_dir, manifest, Path(work))
            formats = _verify_in_fresh_process(staged, Path(work))
        result = ExportResult(manifest.split(params.split).num_examples, trained_accuracy, formats)
        _check(params, result)
        storage.write_json(
            staged / EXPORT_FILE,
            {
                "model": info.name,
                "class_names": info.class_names,
                "input": {
                    "dtype": "uint8",
                    "shape": [None, *info.image_shape],
                    "range": [0, 255],
                    "signatures": {"serving_default": "pixels", "encoded": "bytes of image files"},
                },
                "dataset_fingerprint": manifest.fingerprint,
                "compared_on": {"split": params.split, "num_examples": result.num_examples},
                "trained_accuracy": trained_accuracy,
                "formats": formats,
            },
        )
    for name, facts in formats.items():
        progress.say(
            _STEP,
            f"{name}: accuracy {facts['accuracy']:.4f}, agreement {facts['agreement']:.4f}, "
            f"{facts['bytes'] / 2**20:.2f} MiB, "
            f"{facts['latency_ms']:.2f} ms at batch 1, {facts['images_per_second']:,.0f} images/s",
        )
    return result


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converters' pages of notes off stderr; an exception still comes through."""
    loggers = [logging.getLogger("tensorflow"), logging.getLogger("absl")]
    levels = [logger.level for logger in loggers]
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        os.dup2(nowhere.fileno(), 2)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _write_saved_model(model: Any, info: ModelInfo, path: Path) -> None:
    tf = records.tensorflow()
    names = tf.constant(info.class_names)

    def answer(image: Any) -> dict[str, Any]:
        probabilities = model(image, training=False)
        index = tf.argmax(probabilities, axis=-1)
        return {"probabilities": probabilities, "class_index": index, "class_name": tf.gather(names, index)}

    def from_encoded(encoded: Any) -> dict[str, Any]:
        return answer(
            tf.map_fn(
                lambda one: records.decode_image(one, info.image_shape),
                encoded,
                fn_output_signature=tf.TensorSpec(info.image_shape, tf.uint8),
            )
        )

    module = tf.Module()
    # Keras's own ExportArchive would store every weight twice.
    module.weights = [variable.value for variable in model.variables]
    pixels = tf.TensorSpec((None, *info.image_shape), tf.uint8, name="image")
    files = tf.TensorSpec((None,), tf.string, name="encoded")
    signatures = {
        "serving_default": tf.function(answer, input_signature=[pixels]),
        "encoded": tf.function(from_encoded, input_signature=[files]),
    }
    tf.saved_model.save(module, str(path), signatures=signatures)


def _convert(model: Any, image_shape: tuple[int, int, int], calibration: np.ndarray | None) -> bytes:
    """The model as a LiteRT file: float32 pixels in, or uint8 with int8 inside where there are calibration images."""
    tf = records.tensorflow()
    spec = tf.TensorSpec((None, *image_shape), tf.float32, name="image")
    function = tf.function(lambda image: {"probabilities": model(image, training=False)}, input_signature=[spec])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], model)
    converter.experimental_lower_to_saved_model = False  # So that weights become constants, which int8 needs.
    if calibration is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image[None].astype(np.float32)] for image in calibration)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = tf.uint8
    return converter.convert()


def _calibration_images(params: ExportParams, records_dir: Path, manifest: Manifest) -> np.ndarray:
    """Training images, spread evenly over the split."""
    available = manifest.split(TRAIN).num_examples
    count = min(params.calibration_examples, available)
    indices = np.linspace(0, available - 1, count).astype(int).tolist()
    images = records.pick_images(records_dir, manifest, TRAIN, indices)
    return np.stack([images[index] for index in indices])


def _write_expectations(params: ExportParams, model: Any, records_dir: Path, manifest: Manifest, work: Path) -> float:
    """Leave images, labels and the trained model's own probabilities for the fresh process; returns its accuracy."""
    from components.models.loading import predict

    num_examples = manifest.split(params.split).num_examples
    images = np.lib.format.open_memmap(
        work / verification.IMAGES_FILE, "w+", np.uint8, (num_examples, *manifest.image_shape)
    )
    labels = np.empty(num_examples, np.int32)
    expected = np.empty((num_examples, len(manifest.class_names)), np.float32)
    start = 0
    chunk = _BATCH_SIZE * 16
    for fields in records.read_batches(records_dir, manifest, params.split, chunk).as_numpy_iterator():
        end = start + len(fields[LABEL_FEATURE])
        images[start:end], labels[start:end] = fields[IMAGE_FEATURE], fields[LABEL_FEATURE]
        expected[start:end] = predict(model, fields[IMAGE_FEATURE], _BATCH_SIZE)
        start = end
    images.flush()
    np.save(work / verification.LABELS_FILE, labels)
    np.save(work / verification.EXPECTED_FILE, expected)
    return float((expected.argmax(1) == labels).mean())


def _verify_in_fresh_process(export_dir: Path, work: Path) -> dict[str, dict[str, Any]]:
    """Run verification.py as a script: isolated, so that nothing of the training code can help it."""
    command = [sys.executable, "-I", verification.__file__, str(export_dir), str(work)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode < 0:
        raise RuntimeError(f"The process that judges the export was killed by signal {-done.returncode}.")
    if done.returncode:
        raise InputError(
            f"The exported model does not load in a fresh process (exit code {done.returncode}): "
            f"{done.stderr.strip()[-2000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def _check(params: ExportParams, result: ExportResult) -> None:
    problems = []
    for name, facts in result.formats.items():
        if name == "int8":
            drop = result.trained_accuracy - facts["accuracy"]
            if drop > params.max_int8_accuracy_drop:
                problems.append(
                    f"int8 loses {drop:.4f} of accuracy, allowed {params.max_int8_accuracy_drop} (raise "
                    "export.calibration_examples)"
                )
            continue
        if not facts["max_difference"] <= params.tolerance:  # Written so that NaN fails.
            problems.append(f"{name} differs by {facts['max_difference']:.2e}, allowed {params.tolerance:.2e}")
        if facts["agreement"] < params.min_agreement:
            problems.append(
                f"{name} predicts the same class for {facts['agreement']:.4%}, required {params.min_agreement:.4%}"
            )
    if problems:
        raise InputError(
            f"The exported model disagrees with the trained one on {result.num_examples} examples: "
            f"{'; '.join(problems)}. Nothing was exported. Check the model for layers that behave differently on CPU, "
            "or loosen the export section."
        )
