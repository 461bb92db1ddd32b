"""Rebuilds the model, writes every format, has a fresh process judge them, and only then lets them out."""

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from components import device as devices
from components import progress, records, storage
from components.artifacts import (
    BEST_WEIGHTS_FILE,
    EXPORT_FILE,
    LABEL_FEATURE,
    TEXT_FEATURE,
    TRAIN,
    Manifest,
    ModelInfo,
)
from components.errors import InputError
from components.export_model import language_model, verification
from components.export_model.params import FLOAT, FORMATS, INT8, Compared, ExportParams, ExportResult
from components.interface import (
    CLASSIFICATION,
    CORPUS,
    IMAGE,
    TASKS,
    TEXT,
    CorpusInput,
    ImageInput,
    Input,
    Interface,
    TextInput,
)
from components.model_loading.lookup import UNITS_LAYER
from components.text import copy_vocabulary, load_vocabulary, tokenizer_ops

_STEP = "export_model"
_BATCH_SIZE = 256


def export_model(params: ExportParams, records_dir: Path, model_dir: Path, output: Path) -> ExportResult:
    """Export a trained model for CPU serving.

    Args:
        params: How close the exported model must be.
        records_dir: What create_tfrecords wrote: calibration from its train split, comparison on `params.split`.
        model_dir: What train_model wrote.
        output: Gets export.json and what can be made of saved_model/, model.tflite and model_int8.tflite; appears whole
            or not at all.

    Raises:
        InputError: If a model or data set is damaged, or no format, or not every required one, can be made and is close
            enough to the trained model.
    """
    storage.require_output(output, EXPORT_FILE)
    manifest = Manifest.load(records_dir)
    info = ModelInfo.load(model_dir)
    manifest.split(params.split)
    if not info.fits(manifest):
        raise InputError(
            f"The model in {model_dir} does not fit the data set in {records_dir}: expected "
            f"{info.input} and {info.task} of {len(info.class_names)} classes or targets, received {manifest.input} "
            f"and {manifest.task} of {len(manifest.class_names)}."
        )
    task = manifest.interface.task
    devices.prepare("tensorflow", "cpu", 1, "float32")
    from components.model_loading.trained import load_trained_model

    model = load_trained_model(model_dir)
    with storage.staged_directory(output) as staged:
        copy_vocabulary(model_dir, staged, info.input)

        def calibrate() -> np.ndarray:
            return records.spread_inputs(records_dir, manifest, TRAIN, params.calibration_examples)[1]

        made = _make(_Maker(model, info, model_dir, task.answer, calibrate), staged)
        with tempfile.TemporaryDirectory(prefix="export-") as work:
            compared = _write_expectations(params, model, records_dir, manifest, Path(work))
            measured = _verify_in_fresh_process(staged, Path(work), made.formats)
        judged = compared.judged
        left_out = made.left_out | _too_far(params, compared, measured)
        if INT8 in measured and FLOAT in left_out:  # Quantised from the same, and itself judged by one figure alone.
            left_out[INT8] = left_out.get(INT8, "the float model, of which it is made, is left out")
        _check(params, left_out)
        formats = {name: facts for name, facts in measured.items() if name not in left_out}
        for name in left_out:
            _remove(staged / verification.FILES[name])
        for facts in formats.values():
            facts[judged] = _finite(facts[judged])
        result = ExportResult(compared.num_examples, judged, _finite(compared.trained_score), formats, left_out)
        storage.write_json(
            staged / EXPORT_FILE,
            {
                "model": info.name,
                "class_names": info.class_names,
                "task": info.task,
                "input": {
                    **dataclasses.asdict(info.input),
                    "dtype": info.input.dtype,
                    "shape": [None, *info.input.shape],
                    **_INPUT_FACTS[info.input.kind],
                },
                "output": {"name": task.answer, **_scale(model)},
                "quantization": made.quantization if INT8 in formats else None,
                "dataset_fingerprint": manifest.fingerprint,
                "compared_on": {"split": params.split, "num_examples": result.num_examples},
                f"trained_{judged}": result.trained_score,
                "formats": formats,
                "left_out": left_out,
            },
        )
    for name, facts in formats.items():
        progress.say(
            _STEP,
            f"{name}: {judged} {_shown(facts[judged])}, agreement {facts['agreement']:.4f}, "
            f"{facts['bytes'] / 2**20:.2f} MiB, "
            f"{facts['latency_ms']:.2f} ms at batch 1, {facts['examples_per_second']:,.0f} {info.input.plural}/s",
        )
    for name, reason in left_out.items():
        progress.say(_STEP, f"{name} left out: {reason}")
    return result


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _finite(score: float) -> float | None:
    """None for what cannot be measured: R² of targets that do not vary in a split."""
    return score if math.isfinite(score) else None


def _shown(score: float | None) -> str:
    return "not measured" if score is None else f"{score:.4f}"


# What export.json says of the SavedModel's signatures.
_INPUT_FACTS: Mapping[str, Mapping[str, Any]] = {
    IMAGE: {
        "range": [0, 255],
        "signatures": {"serving_default": "pixels", "encoded": "bytes of image files"},
    },
    TEXT: {"signatures": {"serving_default": "strings in UTF-8", "tokens": "ids of tokens"}},
    CORPUS: {"signatures": language_model.SIGNATURES},
}


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


def _write_saved_model(model: Any, info: ModelInfo, model_dir: Path, path: Path) -> None:
    tf = records.tensorflow()
    names = tf.constant(info.class_names)

    def answer(inputs: Any) -> dict[str, Any]:
        outputs = model(inputs, training=False)
        if info.task != CLASSIFICATION:
            return {TASKS[info.task].answer: outputs}
        index = tf.argmax(outputs, axis=-1)
        return {"probabilities": outputs, "class_index": index, "class_name": tf.gather(names, index)}

    module = tf.Module()
    # Keras's own ExportArchive would store every weight twice.
    module.weights = [variable.value for variable in model.variables]
    tf.saved_model.save(module, str(path), signatures=_signatures(info.input, answer, model_dir, module))


@functools.singledispatch
def _signatures(given: Any, answer: Callable[[Any], Any], model_dir: Path, module: Any) -> dict[str, Any]:
    """The SavedModel's signatures by name, around a function of what the model takes; `module` keeps what they need."""
    raise TypeError(f"No signatures for inputs of {type(given)}.")


@_signatures.register
def _(given: ImageInput, answer: Callable[[Any], Any], model_dir: Path, module: Any) -> dict[str, Any]:
    tf = records.tensorflow()
    shape = given.image_shape

    def from_encoded(encoded: Any) -> Any:
        return answer(
            tf.map_fn(
                lambda one: records.decode_image(one, shape),
                encoded,
                fn_output_signature=tf.TensorSpec(shape, tf.uint8),
            )
        )

    def from_pixels(image: Any) -> Any:
        return answer(image)

    pixels = tf.TensorSpec((None, *shape), tf.uint8, name="image")
    files = tf.TensorSpec((None,), tf.string, name="encoded")
    return {
        "serving_default": tf.function(from_pixels, input_signature=[pixels]),
        "encoded": tf.function(from_encoded, input_signature=[files]),
    }


@_signatures.register
def _(given: TextInput, answer: Callable[[Any], Any], model_dir: Path, module: Any) -> dict[str, Any]:
    tf = records.tensorflow()
    tokenize, module.lookup = tokenizer_ops(given, load_vocabulary(model_dir, given))

    def from_texts(text: Any) -> Any:
        return answer(tokenize(text))

    def from_tokens(tokens: Any) -> Any:
        return answer(tokens)

    texts = tf.TensorSpec((None,), tf.string, name="text")
    tokens = tf.TensorSpec((None, *given.shape), tf.int32, name="tokens")
    return {
        "serving_default": tf.function(from_texts, input_signature=[texts]),
        "tokens": tf.function(from_tokens, input_signature=[tokens]),
    }


def _scale(model: Any) -> dict[str, list[float]]:
    """What turns the standardised numbers of a regression into the targets' units; empty for other models."""
    units = model.layers[-1]
    is_ours = units.name == UNITS_LAYER and hasattr(units, "scale")
    return {"scale": units.scale, "offset": units.offset} if is_ours else {}


def _without_units(model: Any) -> Any:
    """The model up to standardised numbers, of a regression; others as they are."""
    import keras

    # In int8, one scale for all outputs would drown a target of small numbers, and a small spread around a large mean:
    # LiteRT's files give standardised numbers, and export.json says what makes units of them.
    return keras.Model(model.input, model.layers[-1].input) if _scale(model) else model


@dataclasses.dataclass(frozen=True)
class _LiteModels:
    """What writes the two LiteRT files' contents, and what is quantised in the second."""

    floating: Callable[[], bytes]
    quantized: Callable[[], bytes]
    quantization: str


@functools.singledispatch
def _lite_models(
    given: Any, answer: str, model: Any, model_dir: Path, calibrate: Callable[[], np.ndarray]
) -> _LiteModels:
    """The model for LiteRT; its output is called `answer`. Inputs to calibrate with are read where they are needed."""
    raise TypeError(f"No LiteRT models of {type(given)}.")


@_lite_models.register
def _(given: ImageInput, answer: str, model: Any, model_dir: Path, calibrate: Callable[[], np.ndarray]) -> _LiteModels:
    from components.model_loading.trained import load_trained_model

    of_pixels = _without_units(load_trained_model(model_dir, input_dtype="float32"))
    if any("While" in operation.type for operation in _traced(of_pixels, given, answer, 1).graph.get_operations()):
        return _with_loops(of_pixels, given, answer)
    return _LiteModels(
        lambda: _convert(_converter(of_pixels, given, answer, None)),
        lambda: _calibrated(of_pixels, given, answer, calibrate()),
        "weights and activations, by calibration",
    )


@_lite_models.register
def _(given: TextInput, answer: str, model: Any, model_dir: Path, calibrate: Callable[[], np.ndarray]) -> _LiteModels:
    return _with_loops(_without_units(model), given, answer)


@_lite_models.register
def _(given: CorpusInput, answer: str, model: Any, model_dir: Path, calibrate: Callable[[], np.ndarray]) -> _LiteModels:
    return _LiteModels(
        lambda: _convert(language_model.step_converter(model, quantize=False)),
        lambda: _convert(language_model.step_converter(model, quantize=True)),
        "weights",
    )


def _with_loops(model: Any, given: Input, answer: str) -> _LiteModels:
    """A model with loops, for one example at a time, since LiteRT knows no loop over a changing batch.

    Quantised, its weights are int8, and what is computed with them is quantised as it comes: a loop is not calibrated.
    """

    def convert(quantize: bool) -> bytes:
        converter = _converter(model, given, answer, 1)
        if quantize:
            converter.optimizations = [records.tensorflow().lite.Optimize.DEFAULT]
        return _convert(converter)

    return _LiteModels(lambda: convert(False), lambda: convert(True), "weights")


@dataclasses.dataclass(frozen=True)
class _Maker:
    """A trained model, and what it takes to write it in any format."""

    model: Any
    info: ModelInfo
    model_dir: Path
    answer: str
    calibrate: Callable[[], np.ndarray]

    @functools.cached_property
    def lite(self) -> _LiteModels:
        """The model for LiteRT, traced once for both of its files."""
        return _lite_models(self.info.input, self.answer, self.model, self.model_dir, self.calibrate)

    def write(self, name: str, path: Path) -> None:
        """Write one format."""
        if name == FLOAT:
            path.write_bytes(self.lite.floating())
        elif name == INT8:
            path.write_bytes(self.lite.quantized())
        elif isinstance(self.info.input, CorpusInput):
            language_model.write_saved_model(self.model, self.info, path)
        else:
            _write_saved_model(self.model, self.info, self.model_dir, path)


def try_out(
    model: str, parameters: Mapping[str, Any], interface: Interface, required: Sequence[str], work: Path
) -> None:
    """Build a model as it will be trained, rebuild it as it will be exported, and convert it, untrained.

    Args:
        model: As `build_model` takes it.
        parameters: Its hyper-parameters.
        interface: What it must take and give.
        required: Formats that the export must hold; the LiteRT files among them are made.
        work: An empty folder.

    Raises:
        InputError: If the model is not one that can be trained and exported so.
    """
    devices.prepare("tensorflow", "cpu", 1, "float32")
    from components.model_loading.lookup import build_model
    from components.model_loading.trained import check_rebuilds, load_trained_model, save_architecture

    built = build_model(model, interface, parameters)
    save_architecture(built, work, check_rebuilds(built, model, interface.task_name))
    wanted = [name for name in (FLOAT, INT8) if name in required]
    if not wanted:
        return
    built.save_weights(work / BEST_WEIGHTS_FILE)
    names = tuple(map(str, range(interface.num_classes)))
    info = ModelInfo(model, parameters, names, interface.input, interface.task_name, "", {})

    def calibrate() -> np.ndarray:
        return np.random.default_rng(0).integers(0, 256, (8, *interface.input.shape), np.uint8)

    maker = _Maker(load_trained_model(work), info, work, interface.task.answer, calibrate)
    if left_out := _make(maker, work, wanted).left_out:
        reasons = ". ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise InputError(
            f"The model {model!r} cannot be exported as export.required={list(required)} asks, found before its "
            f"training: {reasons}. Or ask for less."
        )


@dataclasses.dataclass(frozen=True)
class _Made:
    """The formats that could be made, why the others could not, and what int8 has in int8."""

    formats: tuple[str, ...]
    left_out: dict[str, str]
    quantization: str | None


def _make(maker: _Maker, directory: Path, wanted: Sequence[str] = FORMATS) -> _Made:
    left_out: dict[str, str] = {}
    with _quiet():
        for name in wanted:
            path = directory / verification.FILES[name]
            try:
                if name == INT8 and FLOAT in left_out:
                    raise InputError(left_out[FLOAT])
                maker.write(name, path)
            except OSError:  # Of this machine's disk, not of the model.
                raise
            except Exception as error:  # TensorFlow raises what it happens upon.
                left_out[name] = str(error) if isinstance(error, InputError) else _told(error)
                _remove(path)
    formats = tuple(name for name in wanted if name not in left_out)
    return _Made(formats, left_out, maker.lite.quantization if INT8 in formats else None)


def _told(error: Exception) -> str:
    """An error's kind and first line."""
    line, *_ = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {line}"


def _calibrated(model: Any, given: Input, answer: str, calibration: np.ndarray) -> bytes:
    """The model as a LiteRT file that takes uint8, with int8 inside."""
    tf = records.tensorflow()
    converter = _converter(model, given, answer, None)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image[None].astype(np.float32)] for image in calibration)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = tf.uint8
    return _convert(converter)


def _converter(model: Any, given: Input, answer: str, batch_size: int | None) -> Any:
    converter = records.tensorflow().lite.TFLiteConverter.from_concrete_functions(
        [_traced(model, given, answer, batch_size)], model
    )
    converter.experimental_lower_to_saved_model = False  # So that weights become constants, which int8 needs.
    return converter


def _traced(model: Any, given: Input, answer: str, batch_size: int | None) -> Any:
    """The model as a TensorFlow function; LiteRT takes pixels as float32."""
    tf = records.tensorflow()
    dtype, name = (tf.float32, "image") if isinstance(given, ImageInput) else (tf.int32, "tokens")
    spec = tf.TensorSpec((batch_size, *given.shape), dtype, name=name)
    function = tf.function(lambda inputs: {answer: model(inputs, training=False)}, input_signature=[spec])
    return function.get_concrete_function()


def _convert(converter: Any) -> bytes:
    try:
        return converter.convert()
    except Exception as error:  # Each of its passes raises something else.
        operations = sorted(set(re.findall(r"'(tf\.\w+)' op", str(error))))
        raise InputError(
            f"LiteRT has no form for a part of this model: {', '.join(operations) or _told(error)}. Replace the layer "
            "by others that it can run on a CPU, and train again"
        ) from error


def _write_expectations(
    params: ExportParams, model: Any, records_dir: Path, manifest: Manifest, work: Path
) -> Compared:
    """Leave inputs, labels and the trained model's own answers for the fresh process; returns what is compared."""
    if isinstance(manifest.input, CorpusInput):
        return language_model.write_expectations(params.split, model, records_dir, manifest, work)
    from components.model_loading.trained import predict

    num_examples = manifest.split(params.split).num_examples
    (inputs_shape, inputs_dtype), of_labels, _ = manifest.interface.batch_shapes(num_examples)
    inputs = np.lib.format.open_memmap(work / verification.INPUTS_FILE, "w+", inputs_dtype, inputs_shape)
    labels = np.empty(*of_labels)
    expected = np.empty((num_examples, *manifest.interface.output_shape), np.float32)
    start = 0
    chunk = _BATCH_SIZE * 16
    texts: list[str] = []
    for fields in records.read_batches(records_dir, manifest, params.split, chunk, with_keys=True).as_numpy_iterator():
        end = start + len(fields[LABEL_FEATURE])
        inputs[start:end], labels[start:end] = fields[manifest.input.feature], fields[LABEL_FEATURE]
        expected[start:end] = predict(model, inputs[start:end], _BATCH_SIZE)
        texts += [text.decode() for text in fields.get(TEXT_FEATURE, ())]
        start = end
    inputs.flush()
    if texts:
        storage.write_json(work / verification.TEXTS_FILE, texts)
    np.save(work / verification.LABELS_FILE, labels)
    np.save(work / verification.EXPECTED_FILE, expected)
    task = manifest.interface.task
    facts = {"task": task.name, "judged": task.judged, "answer": task.answer, **_scale(model)}
    storage.write_json(work / verification.TASK_FILE, facts)
    return Compared(num_examples, task.judged, task.judge(labels, expected))


def _verify_in_fresh_process(export_dir: Path, work: Path, formats: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run verification.py as a script: isolated, so that nothing of the training code can help it."""
    command = [sys.executable, "-I", verification.__file__, str(export_dir), str(work), *formats]
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


def _too_far(params: ExportParams, compared: Compared, measured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By format, why it is too far from the trained model, for those that are."""
    far = {}
    for name, facts in measured.items():
        problems = [facts["error"]] if "error" in facts else _problems(params, compared, name, facts)
        if problems:
            far[name] = "; ".join(problems)
    return far


def _problems(params: ExportParams, compared: Compared, name: str, facts: Mapping[str, Any]) -> list[str]:
    against = f"the trained model on {compared.num_examples:,} examples"
    if name == INT8:
        if not math.isfinite(compared.trained_score):
            return []
        drop, interval = compared.trained_score - facts[compared.judged], facts["drop_interval"]
        at_least = interval[0] if interval else -math.inf
        if math.isfinite(drop) and at_least <= params.max_int8_accuracy_drop:
            return []
        return [
            f"it loses {drop:.4f} of {compared.judged} against {against}, at least {at_least:.4f} with 95 % "
            f"confidence, allowed {params.max_int8_accuracy_drop} (raise export.calibration_examples, or "
            "export.max_int8_accuracy_drop)"
        ]
    problems = []
    if not facts["max_difference"] <= params.tolerance:  # Written so that NaN fails.
        problems.append(f"it differs from {against} by {facts['max_difference']:.2e}, allowed {params.tolerance:.2e}")
    if facts["agreement"] < params.min_agreement:
        problems.append(
            f"it gives the same answer as {against} for {facts['agreement']:.4%}, required {params.min_agreement:.4%}"
        )
    return problems


def _check(params: ExportParams, left_out: Mapping[str, str]) -> None:
    """Refuse an export that lacks a required format, or all."""
    lacking = [name for name in params.required if name in left_out]
    if lacking or set(left_out) == set(FORMATS):
        reasons = [f"{name}: {left_out[name]}" for name in lacking or FORMATS]
        wanted = f"export.required asks for {', '.join(lacking)}" if lacking else "no format is left"
        raise InputError(
            f"Nothing was exported: {wanted}. {'. '.join(reasons)}. Check the model for layers that LiteRT lacks or "
            "that behave differently on a CPU, or loosen the export section."
        )
