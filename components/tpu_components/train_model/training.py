"""Trains a model: starts or resumes a run, runs and validates epochs, stops early, and writes the model's folder."""

import dataclasses
import functools
import json
import math
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from tpu_components.core.base import progress, termination
from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.frameworks import keras, tf
from tpu_components.core.examples.artifacts import (
    ARCHITECTURE_FILE,
    BEST_WEIGHTS_FILE,
    HISTORY_FILE,
    LAST_WEIGHTS_FILE,
    MODEL_FILE,
    TRAIN,
    VALIDATION,
    Manifest,
    ModelInfo,
    file_sha256,
)
from tpu_components.core.examples.example_ids import save_trained_on
from tpu_components.core.examples.text import copy_vocabulary
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.machines import device as devices
from tpu_components.core.machines.hosts import Hosts, ProcessGroup, find_hosts
from tpu_components.core.metrics.definitions import HIGHER, LOWER, direction
from tpu_components.core.metrics.keras_metrics import adapt, direction_of, measured_by
from tpu_components.core.models.lookup import explain, has_added_class
from tpu_components.core.models.trained import save_architecture
from tpu_components.core.models.training_step.callbacks import make_callbacks
from tpu_components.core.models.training_step.compiling import UNPENALIZED_LOSS
from tpu_components.core.models.training_step.hyperparameters import AUTO, TrainParams
from tpu_components.core.models.training_step.optimizers import learning_rate_at
from tpu_components.core.models.training_step.sharding import FULLY_SHARDED, fully_shard
from tpu_components.core.models.training_step.wrapping import count_synchronized_layers
from tpu_components.train_model import heartbeat
from tpu_components.train_model.checkpoints import checkpoint
from tpu_components.train_model.checkpoints.parts import Array
from tpu_components.train_model.environment_report import leave_report
from tpu_components.train_model.goodput import GoodputRecorder
from tpu_components.train_model.initial_model import find_initial_model
from tpu_components.train_model.loop import make_loop
from tpu_components.train_model.profiling import CHECKPOINT, COMPUTE, HOST, INPUT, PROFILES, StepProfile, profiler
from tpu_components.train_model.receipts import leave_receipt
from tpu_components.train_model.result import STEP, TrainResult
from tpu_components.train_model.session import Session, run_digest
from tpu_components.train_model.validation import Validation, ValidationSplit

_TENSORBOARD_DIR = "tensorboard"
_PROGRAMS_DIR = "programs"  # JAX's compile cache: a restart does not compile again.
_LOG_DIR = "AIP_TENSORBOARD_LOG_DIR"  # Set by Vertex for a job: custom_job.proto, base_output_directory.


def default_checkpoint_dir(output: Path) -> Path:
    """Return the default checkpoint folder for a model that is written to `output`.

    If the environment variable AIP_CHECKPOINT_DIR is set, as on Vertex AI, the result is the mounted folder of the URI
    in this variable. Otherwise, it is the folder `OUTPUT-checkpoints` next to `output`.
    """
    uri = os.environ.get("AIP_CHECKPOINT_DIR", "")
    return storage.mounted(uri) if uri else output.parent / f"{output.name}-checkpoints"


def train_model(
    params: TrainParams,
    records_dir: str | Path,
    output: str | Path,
    checkpoint_dir: str | Path | None = None,
    hosts: Hosts | None = None,
) -> TrainResult:
    """Train a Keras model on the training split of a data set.

    If there is a checkpoint of the same training run, training continues from it. Otherwise, it starts from the
    beginning. If several hosts train together, only host 0 writes the model. Every host returns a result.

    Args:
        params: Hyper-parameters of the training.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder for the model: best and last weights, history and TensorBoard logs. It is written atomically.
        checkpoint_dir: Folder for checkpoints, from which a restarted run continues. None means
            `default_checkpoint_dir(output)`.
        hosts: Hosts that train together, with the index of this host. If None, they are read from environment
            variables.

    Raises:
        InputError: If parameters, data and device do not match, or training diverges. The last good checkpoint is kept.
        Terminated: If the platform stops a host with SIGTERM, or a host is lost. The next start continues from the
            checkpoint.
    """
    records_dir = Location(records_dir).as_path()
    output = Location(output).as_path()
    started = time.time()
    storage.require_output(output, MODEL_FILE)
    manifest = Manifest.load(records_dir, verify=False)
    num_examples = manifest.split(TRAIN).num_examples
    params.check_batch_fits(num_examples)
    hosts = hosts or find_hosts(os.environ)
    if not hosts.is_writer:
        os.environ[progress.LOUDNESS_VARIABLE] = progress.QUIET  # Only host 0 logs.
    checkpoint_dir = Path(checkpoint_dir or default_checkpoint_dir(output))
    with tempfile.TemporaryDirectory(prefix="initial-") as scratch:
        initial = find_initial_model(params.initial_model, records_dir, manifest, Path(scratch))
        recorder = GoodputRecorder(checkpoint_dir, run_digest(params, initial, manifest), started, hosts.is_writer)
        with heartbeat.required(), recorder.recorded():
            devices.raise_locked_memory()
            device = devices.prepare(params.backend, params.accelerator, params.num_replicas, params.precision, hosts)
            dataclasses.replace(params, num_replicas=device.num_replicas).check_batch_fits(num_examples)
            if device.backend == "jax":
                devices.keep_programs(checkpoint_dir / _PROGRAMS_DIR)
            unchanged = _in_background(lambda: manifest.check_shards(records_dir, share=hosts.share))
            if params.sharding == FULLY_SHARDED:
                device = fully_shard(device)
            group = ProcessGroup(hosts)
            with group.together():
                try:
                    session = Session(params, manifest, device, checkpoint_dir, unchanged, group, recorder, initial)
                    training = _Training(session, records_dir)
                    training.run()
                except InputError:
                    raise
                except Exception:
                    unchanged.result()  # Changed records may be the cause; then this raises a clearer error.
                    raise
                unchanged.result()
                result = training.result()
                if hosts.is_writer:
                    training.save(output, result)
                    leave_report(device, output.parent, result, started)
    return result


def _in_background(work: Callable[[], None]) -> "Future[None]":
    """Run a function in a daemon thread, and return a future of its outcome.

    When the process exits, it does not wait for the thread.
    """
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


class _Training:
    """Runs the epochs of a session: trains, validates, writes curves for TensorBoard, and saves the model's folder."""

    def __init__(self, session: Session, records_dir: Path) -> None:
        params, manifest = session.params, session.manifest
        self._session = session
        self._records_dir = records_dir
        # Passages of a corpus can overlap, but each character counts once. Convert the count to a number of examples.
        targets = math.prod(manifest.interface.target_shape)
        counted = manifest.split(TRAIN).statistics.get("num_characters", session.num_examples * targets)
        self._counted_examples = counted / targets
        split: ValidationSplit | None = None
        if VALIDATION in manifest.splits:
            share = session.group.hosts.share
            split = ValidationSplit(records_dir, manifest, session.batch_size, params.in_memory_mib, share)
        self._metrics = [
            adapt(metric, manifest.interface, has_added_class(session.model)) for metric in measured_by(session.model)
        ]
        # Metric that determines the best epoch and early stopping, and its direction: 1 if higher is better, else -1.
        self._judged_by, self._sign = self._judge(params.monitor)
        self._callbacks = make_callbacks(session.model, params, self._known)
        self._loop = make_loop(session, records_dir, split.held_bytes if split else 0)
        self._validation = Validation(session, split, self._metrics, self._loop.is_resident) if split else None
        uri = os.environ.get(_LOG_DIR, "")
        self._published = storage.mounted(uri) if uri else None
        self._tensorboard_dir = session.checkpoint_dir / _TENSORBOARD_DIR
        self._curves = tf.summary.create_noop_writer()

    @property
    def _known(self) -> dict[str, int]:
        """Metrics that the history has for each epoch, as {name: direction}.

        The direction is 1 if higher is better, -1 if lower is better, and 0 if it is unknown which is better.
        """
        manifest = self._session.manifest
        task = manifest.interface.task
        own = {"loss": LOWER, task.metric: direction(task.metric) or HIGHER}
        own |= {metric.name: direction_of(metric) for metric in self._metrics}
        return own | {f"validation_{name}": way for name, way in own.items() if VALIDATION in manifest.splits}

    def _judge(self, monitor: str) -> tuple[str, int]:
        known = self._known
        if monitor == AUTO:
            return "validation_loss" if "validation_loss" in known else "loss", LOWER
        name = re.sub("^val_", "validation_", monitor)
        if not known.get(name):
            names = [name for name, way in known.items() if way]
            raise InputError(
                f"Cannot choose the best epoch by monitor={monitor!r}: expected one of {', '.join(names)}. For "
                f"these metrics, Keras knows whether higher is better.{did_you_mean(name, names)}"
            )
        return name, known[name]

    def run(self) -> None:
        """Train until the end of the run. Continue from the checkpoint if there is one."""
        session = self._session
        if self._validation is None and session.params.monitor == AUTO:
            progress.say(
                STEP, "there is no validation split, so the best epoch is the one with the lowest training loss"
            )
        is_continued = session.restore(self._call_callbacks)
        if session.is_writer:
            if not is_continued:  # Delete the curves of another run.
                shutil.rmtree(self._tensorboard_dir, ignore_errors=True)
            # Checkpoints hold optimizer state, averages and two sets of weights; the model's folder two more sets.
            weights = session.weights().values()
            weight_bytes = sum(math.prod(weight.shape) * np.dtype(weight.dtype).itemsize for weight in weights)
            storage.require_free_bytes(session.checkpoint_dir, 7 * weight_bytes)
            self._curves = tf.summary.create_file_writer(str(self._tensorboard_dir))
        session.recorder.accept(session.progress.saved_at if is_continued else 0.0)
        try:
            with termination.put_off() as session.is_asked_to_end:
                self._run_epochs()
                session.writer.wait()
                self._curves.close()  # Before `save` copies the files.
        finally:
            session.writer.close()

    def _run_epochs(self) -> None:
        session = self._session
        params = session.params
        plural = session.manifest.input.plural
        profiled = params.profile_steps if session.is_writer else 0
        profile = StepProfile(profiled, session.batch_size, self._tensorboard_dir, *profiler(session.device.backend))
        if session.is_writer:
            epochs = f"{params.epochs} epochs{' at most' if params.early_stopping_epochs else ''}"
            progress.say(
                STEP,
                f"training: {session.num_examples:,} {plural}, {session.steps:,} steps per epoch, {epochs}, in "
                f"{session.device.precision}; the first step compiles the model",
            )
        session.stopwatch.take()  # The time before is start-up, in which a program may have been compiled.
        while session.progress.epoch < params.epochs and not self._should_stop():
            epoch = session.progress.epoch
            session.enter_stage_of(epoch)
            self._say_stage()
            left = session.num_examples - session.examples_before(session.progress.step)
            with (
                progress.track(f"{STEP} epoch {epoch + 1}/{params.epochs}", left, plural) as shown,
                profile.watching(shown, left) as bar,
            ):
                begun = session.begin_epoch()
                logs = self._loop.run_epoch(bar)
                seconds = time.monotonic() - begun
            self._end_epoch(logs, seconds, left)
            session.end_if_asked()

    def _call_callbacks(self, entry: Mapping[str, float]) -> None:
        """Call the model's callbacks at the end of an epoch. `entry`, an entry of the history, has the metrics.

        Validation metrics are passed under two names: the name in the history, such as `validation_loss`, and Keras's
        name, such as `val_loss`.
        """
        metrics = {name: value for name, value in entry.items() if name != "epoch"}  # As in Keras.
        logs = {re.sub("^validation_", "val_", name): value for name, value in metrics.items()} | metrics
        for callback in self._callbacks:
            try:
                callback.on_epoch_end(int(entry["epoch"]) - 1, dict(logs))
            except Exception as error:  # User code may raise anything.
                raise InputError(
                    f"The callback {type(callback).__name__} failed at the end of epoch {entry['epoch']:g}: "
                    f"{explain(error)}. Correct its on_epoch_end."
                ) from error

    def _say_stage(self) -> None:
        session = self._session
        stage = session.stage
        if stage.number and (session.progress.epoch, session.progress.step) == (stage.first_epoch, 0):
            frozen = f"{', '.join(stage.frozen)} frozen" if stage.frozen else "nothing frozen"
            progress.say(
                STEP,
                f"stage {stage.number}/{len(session.stages)}: {stage.params.epochs} epochs, learning rate "
                f"{session.learning_rate:g}, {frozen}: {session.num_trainable:,} parameters are trainable",
            )

    def _end_epoch(self, logs: dict[str, float], seconds: float, num_examples: int) -> None:
        """Validate, compare the epoch with the best epoch so far, and write the checkpoint and the curves.

        Args:
            logs: Metrics of the epoch.
            seconds: Time that this session spent on the epoch.
            num_examples: Number of examples on which this session trained in this epoch.
        """
        session = self._session
        stopwatch = session.stopwatch
        now = session.progress
        metric = session.manifest.interface.task.metric
        now.waited_seconds += stopwatch.take_waited()
        steps_of_stage = (now.epoch + 1 - session.stage.first_epoch) * session.steps
        entry = {
            "epoch": now.epoch + 1,
            **({"stage": session.stage.number} if session.stage.number else {}),
            **self._losses(logs),
            # A custom `train_step` may leave metrics out.
            **{name: logs[name] for name in (metric, *(own.name for own in self._metrics)) if name in logs},
            "learning_rate": learning_rate_at(session.model.optimizer, steps_of_stage - 1),
            "examples": session.num_examples,
            "seconds": seconds,
            "examples_per_second": num_examples / seconds,
        }
        with stopwatch.measure(CHECKPOINT):
            arrays = checkpoint.snapshot(session.variables())
        if not checkpoint.all_finite(arrays):
            raise session.divergence(session.steps, "a weight")
        weights = session.select_weights(arrays)
        if self._validation is not None:
            if session.params.ema_decay:
                session.assign_weights(weights)
            with stopwatch.measure(COMPUTE):
                entry |= self._validation.measure()
            if session.params.ema_decay:
                session.assign_weights(arrays)
        judged = entry[self._judged_by]
        if not np.isfinite(judged):
            raise session.divergence(session.steps, f"the {_in_words(self._judged_by)}")
        if self._callbacks:
            self._call_callbacks(entry)  # They may change the learning rate, or weights.
            arrays = checkpoint.snapshot(session.variables())
        # This entry is written now, so time after this line counts to the next epoch.
        now.history.append(entry | {f"{kind}_seconds": spent for kind, spent in stopwatch.take().items()})
        now.epoch = now.epoch + 1
        now.step = 0
        now.seconds = now.seconds + seconds
        is_best = now.best_loss is None or self._sign * (judged - now.best_loss) > 0
        if is_best:
            now.best_loss = judged
            now.best_epoch = now.epoch
            session.best = weights
        with stopwatch.measure(CHECKPOINT):
            session.write(arrays, weights if is_best else None)
        now.end_seconds += stopwatch.take_waited()
        with self._curves.as_default(step=now.epoch):
            for name in entry.keys() - {"epoch", "examples"}:
                tf.summary.scalar(name, entry[name])
        if session.is_writer:
            self._curves.flush()
            self._publish_curves()
        progress.say(STEP, _epoch_line(entry, now, session.params.epochs, session.manifest))

    def _publish_curves(self) -> None:
        """Copy the curves to the folder of the platform's TensorBoard, if there is one.

        Whole files are copied after every epoch, because other programs see a file in a mounted bucket only after it is
        closed.
        """
        if self._published is not None:
            for path in (*self._tensorboard_dir.rglob("events.*"), *self._tensorboard_dir.glob(f"{PROFILES}/*/*")):
                storage.write_bytes(self._published / path.relative_to(self._tensorboard_dir), path.read_bytes())

    def _losses(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return the losses of an epoch: `loss`, the mean loss per example, and `penalty`, the regularization loss.

        `loss` does not include `penalty`. Without regularization, there is no `penalty`.
        """
        session = self._session
        # Keras divides the loss by the size of full batches, though padding has weight zero.
        full = session.steps * session.batch_size / self._counted_examples
        loss = logs.get(UNPENALIZED_LOSS, logs["loss"])
        return {"loss": loss * full} | ({"penalty": logs["loss"] - loss} if UNPENALIZED_LOSS in logs else {})

    def _should_stop(self) -> bool:
        session = self._session
        patience = session.params.early_stopping_epochs
        now = session.progress
        if patience and now.epoch - max(now.best_epoch, session.stages[-1].first_epoch) >= patience:
            better = "higher" if self._sign == HIGHER else "lower"
            progress.say(STEP, f"stopped early: no {better} {_in_words(self._judged_by)} for {patience} epochs")
            return True
        if self._callbacks and session.model.stop_training:
            progress.say(STEP, f"stopped by a callback after {now.epoch} of {session.params.epochs} epochs")
            return True
        return False

    def result(self) -> TrainResult:
        """Return the outcome of the training run."""
        session = self._session
        now = session.progress
        device = session.device
        last = now.history[-1]
        trained = max(now.seconds - now.start_seconds - now.waited_seconds, 0.0)
        paid = session.recorder.paid_seconds(trained, now.waited_seconds + now.end_seconds)
        times = {kind: f"{kind}_seconds" for kind in session.stopwatch.kinds}
        return TrainResult(
            epochs=now.epoch,
            best_epoch=now.best_epoch,
            judged_by=self._judged_by,
            steps=now.epoch * session.steps,
            examples_seen=now.epoch * session.num_examples,
            seconds=now.seconds,
            examples_per_second=statistics.median(entry["examples_per_second"] for entry in now.history),
            metrics={name: last[name] for name in self._known if name in last and not name.startswith("validation_")},
            backend=device.backend,
            accelerator=device.accelerator,
            num_replicas=device.num_replicas,
            precision=device.precision,
            num_synchronized_layers=count_synchronized_layers(session.model, device.num_replicas),
            first_step_seconds=session.recorder.first_step_seconds,
            time={kind: sum(entry.get(name, 0.0) for entry in now.history) for kind, name in times.items()},
            sessions=session.recorder.num_sessions,
            goodput=trained / (sum(paid.values()) or 1.0),
            paid_seconds=paid,
        )

    def save(self, output: Path, result: TrainResult) -> None:
        """Write the folder of the trained model atomically.

        Args:
            output: Folder to write.
            result: Result of the training run.
        """
        session = self._session
        manifest = session.manifest
        initial = session.initial
        keras.distribution.set_distribution(None)  # Only this host builds the copy that verifies the saved model.
        progress.say(STEP, describe_time(result.time))
        if result.sessions > 1:
            progress.say(
                STEP,
                f"goodput {result.goodput:.0%}: share of the time of {result.sessions} sessions that was spent on "
                "steps that are part of the result",
            )
        session.freezer.freeze(())  # Restore the trainable layers of the built model.
        with storage.staged_directory(output) as staged:
            save_architecture(session.model, staged, session.code)
            self._save_weights(staged)
            lines = [json.dumps(entry) for entry in session.progress.history]
            (staged / HISTORY_FILE).write_text("\n".join(lines) + "\n")
            if self._tensorboard_dir.is_dir():
                storage.link_tree(self._tensorboard_dir, staged / _TENSORBOARD_DIR)
            copy_vocabulary(self._records_dir, staged, manifest.input)
            save_trained_on(self._records_dir, staged, initial.directory if initial else None)
            ModelInfo(
                name=session.params.model,
                parameters=dict(session.params.model_parameters),
                class_names=manifest.class_names,
                input=manifest.input,
                task=manifest.task,
                dataset_fingerprint=manifest.fingerprint,
                training={
                    **dataclasses.asdict(session.params),
                    **session.used,
                    **dataclasses.asdict(result),
                    "host": devices.describe_host(),
                    "initial_model": initial.name if initial else "",
                    # Empty if all classes weigh the same.
                    "weights_by_class": dict(zip(manifest.class_names, session.class_weights, strict=False)),
                    **({"initial_model_digest": initial.digest} if initial else {}),
                },
                digests={name: file_sha256(staged / name) for name in (ARCHITECTURE_FILE, BEST_WEIGHTS_FILE)},
            ).save(staged)
            leave_receipt(session, result, staged)

    def _save_weights(self, directory: Path) -> None:
        """Write the weights of the last epoch and of the best epoch, without the optimizer's variables."""
        session = self._session
        best, assign, model = session.best, session.assign_weights, session.model
        if session.parts is None:
            arrays: Mapping[str, Array] = checkpoint.snapshot(session.variables())
        else:  # This host's devices hold only parts: read all weights from the files into host memory.
            arrays, _ = checkpoint.load_arrays(session.checkpoint_dir / checkpoint.CHECKPOINT_FILE)
            best, _ = checkpoint.load_arrays(session.checkpoint_dir / checkpoint.BEST_FILE)
            assign = functools.partial(checkpoint.hold, session.weights())
        last = session.select_weights(arrays)
        for file, weights in ((LAST_WEIGHTS_FILE, last), (BEST_WEIGHTS_FILE, best or last)):
            assign(weights)
            optimizer = model.optimizer
            model.optimizer = None  # Keras would save its variables too.
            model.save_weights(directory / file)
            model.optimizer = optimizer


def _in_words(judged_by: str) -> str:
    return "training loss" if judged_by == "loss" else judged_by.replace("_", " ")


def describe_time(time: Mapping[str, float]) -> str:
    """Format the shares of the training time for the log.

    Args:
        time: Seconds that the host spent on each activity, such as `compute` or `input`, from `TrainResult.time`.

    Example:
        >>> describe_time({"compute": 9.0, "input": 0.5, "checkpoint": 0.0, "host": 0.5})
        'the epochs took 10.0 s: 90% computing; waiting: 5% for input, 0% for checkpoints, 5% for the host'
    """
    total = sum(time.values())
    shares = {kind: seconds / total if total else 0.0 for kind, seconds in time.items()}
    words = {INPUT: "input", CHECKPOINT: "checkpoints", HOST: "the host"}
    waits = [f"{shares[kind]:.0%} for {name}" for kind, name in words.items() if kind in shares]
    what = "computing" if INPUT in shares else "computing and input"
    return f"the epochs took {total:.1f} s: {shares[COMPUTE]:.0%} {what}; waiting: {', '.join(waits)}"


def _epoch_line(entry: dict[str, float], now: checkpoint.TrainingProgress, epochs: int, manifest: Manifest) -> str:
    metric = manifest.interface.task.metric
    line = f"epoch {entry['epoch']:.0f}/{epochs}: loss {entry['loss']:.4f}"
    line += f", {metric} {entry[metric]:.4f}" if metric in entry else ""
    if "validation_loss" in entry:
        line += f", validation loss {entry['validation_loss']:.4f}, {metric} {entry[f'validation_{metric}']:.4f}"
    line += f", {entry['examples_per_second']:,.0f} {manifest.input.plural}/s, {entry['seconds']:.0f} s"
    left = now.seconds / now.epoch * (epochs - now.epoch)
    return line + (f", {left / 60:.0f} min left" if left >= 60 else "")
