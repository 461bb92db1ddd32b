"""Rebuilds the model, writes every format, compares the formats in a new process, and keeps those that agree."""

import contextlib
import dataclasses
import errno
import io
import logging
import math
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress, typed_values
from tpu_components.core.base.errors import InputError, describe
from tpu_components.core.base.formatting import byte_size
from tpu_components.core.base.terminal import filter_stderr
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import BEST_WEIGHTS_FILE, EXPORT_FILE, TRAIN, Manifest, ModelInfo
from tpu_components.core.examples.interface import Interface
from tpu_components.core.examples.text import copy_vocabulary
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines import device as devices
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.registry.versions import model_digest
from tpu_components.core.results.export_info import ComparedOn, ExportInfo, FormatFacts, Output
from tpu_components.export_model.comparison import (
    Judge,
    Scorer,
    judged_metric,
    read_answers,
    write_examples,
    write_expected,
)
from tpu_components.export_model.formats import FORMATS, INPUT_FACTS, TrainedModel
from tpu_components.export_model.params import ExportParams, ExportResult

# Measurement of a training step: largest batch, most steps and most seconds.
_TIMED_EXAMPLES = 32
_TIMED_STEPS = 20
_TIMED_SECONDS = 2.0
_STEP = "export_model"
# TensorFlow's errors for a file that it cannot read, or whose content is damaged.
_OF_THE_DISK = ("UnknownError", "DataLossError")


def export_model(
    params: ExportParams, records_dir: str | Path, model_dir: str | Path, output: str | Path
) -> ExportResult:
    """Export a trained model for CPU serving.

    Args:
        params: Required formats, and limits for the differences between formats and the trained model.
        records_dir: Folder that create_tfrecords wrote. Its train split is used for calibration, and `params.split` for
            the comparison.
        model_dir: Folder that train_model wrote.
        output: Folder to write, atomically. It contains export.json and each exported format: saved_model/,
            model.tflite or model_int8.tflite.

    Raises:
        InputError: If the model or the data set is damaged, or if a required format, or every format, cannot be made or
            differs too much from the trained model.
    """
    records_dir = Location(records_dir).as_path()
    model_dir = Location(model_dir).as_path()
    output = Location(output).as_path()
    storage.require_output(output, EXPORT_FILE)
    manifest = Manifest.load(records_dir)
    info = ModelInfo.load(model_dir)
    manifest.split(params.split)
    if not info.fits(manifest):
        raise InputError(
            f"The model in {model_dir} does not fit the data set: {info.compare_with(manifest)}. Export it with the "
            "records that it was trained on."
        )
    with (
        storage.staged_directory(output) as staged,
        tempfile.TemporaryDirectory(prefix="export-") as folder,
        Judge(staged, work := Path(folder)) as judge,
    ):
        devices.prepare("tensorflow", "cpu", 1, "float32")
        import keras

        from tpu_components.core.models.trained import load_trained_model

        keras.utils.set_random_seed(0)  # For equal bytes: the state of Dropout is a variable of the SavedModel.
        copy_vocabulary(model_dir, staged, info.input)

        def calibrate() -> np.ndarray:
            return records.spread_inputs(records_dir, manifest, TRAIN, params.calibration_examples)[1]

        trained = TrainedModel(load_trained_model(model_dir), info, model_dir, calibrate)
        examples = write_examples(params.split, trained, records_dir, manifest, work)
        judged = judged_metric(manifest)
        left_out, quantization = _write_formats(trained, staged, FORMATS, judge.add)
        scorer = Scorer(
            manifest.interface.task, judged, examples.labels, write_expected(trained, examples, manifest, work)
        )
        measured = judge.measure()
        for name in [name for name, facts in measured.items() if "error" not in facts]:
            answers, chosen = read_answers(work, name)
            measured[name] |= scorer.score(answers, chosen)
        left_out |= scorer.find_differing(params, measured)
        for name in measured:
            if (origin := FORMATS[name].quantized_from) in left_out:  # Int8 is compared by the judged metric only.
                left_out.setdefault(name, f"the {origin} model, from which this format is made, is left out")
        _check(params, left_out)
        formats: dict[str, FormatFacts] = {
            name: typed_values.read({**facts, "score": _finite(facts["score"])}, FormatFacts, name)
            for name, facts in measured.items()
            if name not in left_out
        }
        for name in left_out:
            _remove(staged / FORMATS[name].file)
        exported = ExportInfo(
            model=info.name,
            model_digest=model_digest(model_dir),
            class_names=info.class_names,
            task=info.task,
            input=info.input,
            **INPUT_FACTS[info.input.kind],
            output=Output(trained.answer, **{name: tuple(values) for name, values in trained.scale.items()}),
            quantization=next((quantization[name] for name in formats if name in quantization), None),
            dataset_fingerprint=manifest.fingerprint,
            compared_on=ComparedOn(params.split, len(examples.labels)),
            judged=judged,
            trained_score=_finite(scorer.trained),
            formats=formats,
            left_out=left_out,
            columns=manifest.columns,
        )
        exported.save(staged)
    result = ExportResult(len(examples.labels), judged, exported.trained_score, exported.as_dict()["formats"], left_out)
    for name, facts in formats.items():
        score = "not measured" if facts.score is None else f"{facts.score:.4f}"
        on_sample = ""
        if facts.num_compared != result.num_examples:
            on_sample = (
                f" on {facts.num_compared:,} of {result.num_examples:,} random examples: with 95% confidence, the "
                f"prediction differs for at most {facts.most_disagreeing:,} of all examples"
            )
        progress.say(
            _STEP,
            f"{name}: {judged} {score}, agreement {facts.agreement:.4f}{on_sample}, {byte_size(facts.bytes)}, "
            f"{facts.latency} ms at batch 1, {facts.rate} {info.input.plural}/s",
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
    """Return a score, or None if it is NaN or infinite, such as R² of targets that do not vary in a split."""
    return score if math.isfinite(score) else None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the log messages and warnings of TensorFlow's converters during the `with` block."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        # A notebook's stderr is not the process's: filter_stderr does not hide a warning there.
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            filter_stderr(lambda line: False),
        ):
            yield
    finally:
        logging.disable(before)


@dataclasses.dataclass(frozen=True)
class Trial:
    """The result of `try_out`, which checks a model before it is trained.

    Attributes:
        warnings: Messages about the model, for example that the configuration replaces the model's loss.
        example_seconds: Time of a training step on this machine divided by the number of its examples, or 0 if it was
            not measured.
    """

    warnings: tuple[str, ...]
    example_seconds: float = 0.0


def try_out(
    training: TrainParams,
    interface: Interface,
    required: Sequence[str],
    is_timed: bool = False,
) -> Trial:
    """Check before training that a model can be built, trained and exported, by converting the untrained model.

    Args:
        training: Model and hyper-parameters.
        interface: Required input and output of the model.
        required: Formats that the export must contain. Of these, only the formats whose conversion may fail are tried.
        is_timed: Whether to also measure a training step.

    Raises:
        InputError: If the model cannot be trained or exported.
    """
    devices.prepare("tensorflow", "cpu", 1, "float32")
    from tpu_components.core.models.lookup import build_model
    from tpu_components.core.models.trained import check_rebuilds, load_trained_model, save_architecture
    from tpu_components.core.models.training_step.compiling import compile_model, say_what_is_used
    from tpu_components.core.models.training_step.stages import Freezer

    model = training.model
    parameters = training.model_parameters
    notes = list[str]()
    built = build_model(model, interface, parameters, notes.append)
    freezer = Freezer(built)
    for stage in training.stages:
        freezer.freeze(stage.frozen)
    freezer.freeze(())  # Restore the trainable layers.
    wanted = [name for name, form in FORMATS.items() if form.may_fail and name in required]
    with tempfile.TemporaryDirectory(prefix="trial-") as folder:
        work = Path(folder)
        if wanted:
            built.save_weights(work / BEST_WEIGHTS_FILE)
        compile_model(built, interface, training, 1, steps_per_epoch=1, jit_compile=False)
        save_architecture(built, work, check_rebuilds(built, model, interface.task_name))
        if used := say_what_is_used(built, training):
            notes.append(f"The model {model!r}: {used}.")
        classes = tuple(map(str, range(interface.num_classes)))
        info = ModelInfo(model, parameters, classes, interface.input, interface.task_name, "", {})

        def calibrate() -> np.ndarray:
            return np.random.default_rng(0).integers(0, 256, (8, *interface.input.shape), np.uint8)

        if wanted:
            trained = TrainedModel(load_trained_model(work), info, work, calibrate)
            if left_out := _write_formats(trained, work, wanted)[0]:
                reasons = ". ".join(f"{name}: {reason.removesuffix('.')}" for name, reason in left_out.items())
                raise InputError(
                    f"The model {model!r} cannot be exported as export.required={list(required)} requires: {reasons}. "
                    "Change the model, or require fewer formats."
                )
    seconds = _time_example(built, interface, training.batch_size_per_replica) if is_timed else 0.0
    return Trial(tuple(notes), seconds)


def _time_example(model: Any, interface: Interface, batch_size: int) -> float:
    """Return the seconds per example of a training step of a compiled model on this machine, or 0 if the step fails.

    The shortest of a few steps counts, because the machine may be busy. A small batch is enough for an estimate, and
    keeps a large model within seconds.
    """
    batch_size = min(batch_size, _TIMED_EXAMPLES)
    inputs, targets, _ = (np.zeros(shape, kind) for shape, kind in interface.batch_shapes(batch_size))
    weights = np.ones(batch_size, np.float32)
    times: list[float] = []
    with contextlib.suppress(Exception):  # An error of the model's own code, which the training reports in detail.
        model.train_on_batch(inputs, targets, weights)  # The first call traces the step.
        while sum(times) < _TIMED_SECONDS and len(times) < _TIMED_STEPS:
            start = time.perf_counter()
            model.train_on_batch(inputs, targets, weights)
            times.append(time.perf_counter() - start)
    return min(times, default=0.0) / batch_size


def _write_formats(
    trained: TrainedModel, directory: Path, names: Iterable[str], done: Callable[[str], None] = lambda name: None
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the formats to which the model can be converted. Call `done` with the name of each written format.

    Returns:
        Reasons why formats could not be written, and the quantised parts of the written formats, both by format.
    """
    left_out, quantization = dict[str, str](), dict[str, str]()
    with _quiet():
        for name in names:
            form = FORMATS[name]
            path = directory / form.file
            try:
                if form.quantized_from in left_out:
                    raise InputError(left_out[form.quantized_from])
                if quantized := form.write(trained, path):
                    quantization[name] = quantized
                done(name)
            except OSError:  # An error of this machine's disk, not of the model.
                raise
            except Exception as error:  # TensorFlow raises errors of many classes.
                if type(error).__name__ in _OF_THE_DISK:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path)) from error
                left_out[name] = str(error) if isinstance(error, InputError) else describe(error)
                _remove(path)
    return left_out, quantization


def _check(params: ExportParams, left_out: Mapping[str, str]) -> None:
    """Raise InputError if a required format, or every format, is left out."""
    lacking = [name for name in params.required if name in left_out]
    if lacking or set(left_out) == set(FORMATS):
        reasons = [f"{name}: {left_out[name].removesuffix('.')}" for name in lacking or FORMATS]
        wanted = f"required formats were left out: {', '.join(lacking)}" if lacking else "every format was left out"
        raise InputError(
            f"Nothing was exported, because {wanted}. {'. '.join(reasons)}. Check the model for layers that LiteRT "
            "does not support or that behave differently on a CPU, or relax the limits in the export section."
        )
