"""Training session: resume or start, run epochs, validate, stop early, write the model's folder."""

import dataclasses
import functools
import hashlib
import json
import math
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress, termination
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
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
from tpu_components.core.examples.feeding import DEVICE, is_resident, open_training_split, steps_per_epoch
from tpu_components.core.examples.text import copy_vocabulary
from tpu_components.core.files import storage
from tpu_components.core.machines import device as devices
from tpu_components.core.machines.hosts import Hosts, ProcessGroup, find_hosts
from tpu_components.core.models.lookup import build_model
from tpu_components.core.models.step.compiling import (
    UNPENALIZED_LOSS,
    compile_model,
    learning_rate_at,
    weigh_classes,
)
from tpu_components.core.models.step.program import Program, fits, plan_program
from tpu_components.core.models.step.sharding import FULLY_SHARDED, fully_shard
from tpu_components.core.models.step.stages import Freezer, PlannedStage, plan_stages, stage_of
from tpu_components.core.models.step.wrapping import count_synchronized_layers
from tpu_components.core.models.trained import check_rebuilds, predict, save_architecture
from tpu_components.train_model import checkpoint as checkpoints
from tpu_components.train_model import following
from tpu_components.train_model.checkpoint import TrainingProgress
from tpu_components.train_model.environment_report import leave_report, raise_locked_memory
from tpu_components.train_model.goodput import Sessions
from tpu_components.train_model.loop import DeviceLoop, HandedOverFeed, Loop, ResidentFeed
from tpu_components.train_model.params import TrainParams, TrainResult
from tpu_components.train_model.parts import Array, PartsWriter
from tpu_components.train_model.profiling import PROFILES, StepProfile, profiler
from tpu_components.train_model.stopwatch import CHECKPOINT, COMPUTE, HOST, INPUT, Stopwatch
from tpu_components.train_model.validation import SharedModel, Validation

_STEP = "train_model"
_TENSORBOARD_DIR = "tensorboard"
_PROGRAMS_DIR = "programs"  # JAX's compile cache: a restart does not compile again.
_LOG_DIR = "AIP_TENSORBOARD_LOG_DIR"  # Set by Vertex for a job: custom_job.proto, base_output_directory.
# Parameters that may change between two sessions of one run. Only the number of replicas changes the result.
_FREE_TO_CHANGE = ("checkpoint_seconds", "num_replicas", "profile_steps", "residency", "steps_per_execution")


def default_checkpoint_dir(output: Path) -> Path:
    """Return the folder of checkpoints: the platform's (Vertex sets AIP_CHECKPOINT_DIR), else one beside `output`."""
    uri = os.environ.get("AIP_CHECKPOINT_DIR", "")
    if storage.is_on_google(uri):
        return storage.mounted(uri)
    return Path(uri) if uri else output.parent / f"{output.name}-checkpoints"


def train_model(
    params: TrainParams,
    records_dir: Path,
    output: Path,
    checkpoint_dir: Path | None = None,
    hosts: Hosts | None = None,
) -> TrainResult:
    """Train a Keras model on a data set's training split.

    1. Continue from the checkpoint of the same training, if there is one. 2. Otherwise start fresh. If several hosts
    train together, only host 0 writes, and all hosts return its result.

    Args:
        params: Hyper-parameters of the training.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder of the model, written atomically: best and last weights, history and TensorBoard logs.
        checkpoint_dir: Folder of the checkpoints between sessions; None is `default_checkpoint_dir(output)`.
        hosts: Hosts that train together, with the index of this one; None reads them from the environment.

    Raises:
        InputError: If parameters, data and device do not fit, or training diverges; the last good checkpoint is kept.
        Terminated: If the platform ends a host, or a host is lost. The next start continues from the checkpoint.
    """
    begun, started = time.monotonic(), time.time()
    storage.require_output(output, MODEL_FILE)
    manifest = Manifest.load(records_dir, verify=False)
    num_examples = manifest.split(TRAIN).num_examples
    params.check_batch_fits(num_examples)
    hosts = hosts or find_hosts(os.environ)
    if not hosts.is_writer:
        os.environ[progress.LOUDNESS_VARIABLE] = progress.QUIET  # Only host 0 logs.
    checkpoint_dir = checkpoint_dir or default_checkpoint_dir(output)
    sessions = Sessions(checkpoint_dir, _digest(_fixed(params), manifest.fingerprint), started)
    with following.while_followed(), sessions.signed(hosts.is_writer):
        raise_locked_memory()
        device = devices.prepare(params.backend, params.accelerator, params.num_replicas, params.precision, hosts)
        dataclasses.replace(params, num_replicas=device.num_replicas).check_batch_fits(num_examples)
        if device.backend == "jax":
            devices.keep_programs(checkpoint_dir / _PROGRAMS_DIR)
        unchanged = _in_background(lambda: manifest.check_shards(records_dir, share=hosts.share))
        if params.sharding == FULLY_SHARDED:
            device = _sharding_weights(device)
        company = ProcessGroup(hosts)
        with company.together():
            try:
                session = _Session(params, manifest, records_dir, device, checkpoint_dir, unchanged, company, sessions)
                first_step_at = session.run()
            except InputError:
                raise
            except Exception:
                unchanged.result()  # Changed records may be the cause; then this raises a clearer error.
                raise
            unchanged.result()
            result = session.result(first_step_at - begun if first_step_at else 0.0)
            if hosts.is_writer:
                session.save(output, result)
                leave_report(device, output.parent, result, started)
    return result


def _fixed(params: TrainParams) -> list[tuple[str, Any]]:
    """Return the parameters that must be equal in all sessions of a run."""
    return sorted((name, value) for name, value in dataclasses.asdict(params).items() if name not in _FREE_TO_CHANGE)


def _digest(*facts: Any) -> str:
    # By repr and not by `digest_of`: checkpoints of earlier versions hold it, and would not be continued.
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _sharding_weights(device: devices.Device) -> devices.Device:
    """Return the device with fully sharded weights, if it has several replicas.

    Raises:
        InputError: If the backend is not JAX.
    """
    import keras

    if device.backend != "jax":
        raise InputError(f"sharding=fully_sharded needs backend=jax. Received: backend={device.backend}.")
    if device.distribution is None:
        return device
    distribution = fully_shard(device.distribution)
    keras.distribution.set_distribution(distribution)
    return dataclasses.replace(device, distribution=distribution)


def _in_background(work: Callable[[], None]) -> "Future[None]":
    """Run a function in a daemon thread; the process does not wait for it at exit."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
            outcome.set_result(None)
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome


class _Session:
    """The part of a training run that one process performs between its start and its end."""

    def __init__(
        self,
        params: TrainParams,
        manifest: Manifest,
        records_dir: Path,
        device: devices.Device,
        checkpoint_dir: Path,
        unchanged: "Future[None]",
        company: ProcessGroup,
        sessions: Sessions,
    ) -> None:
        import keras

        self.params, self.manifest, self.device, self.company = params, manifest, device, company
        self._sessions = sessions
        self._share, self._is_writer = company.hosts.share, company.hosts.is_writer
        self._records_dir, self._checkpoint_dir = records_dir, checkpoint_dir
        self.batch_size = params.batch_size_per_replica * device.num_replicas
        self._num_examples = manifest.split(TRAIN).num_examples
        self.steps = steps_per_epoch(self._num_examples, self.batch_size)
        # Passages of a corpus may overlap; each character counts once. Convert the count to a number of examples.
        targets = math.prod(manifest.interface.target_shape)
        counted = manifest.split(TRAIN).statistics.get("num_characters", self._num_examples * targets)
        self._counted_examples = counted / targets
        keras.utils.set_random_seed(params.seed)
        with device.scope():
            self.model = build_model(
                params.model, manifest.interface, params.model_parameters, functools.partial(progress.say, _STEP)
            )
            self._code = check_rebuilds(self.model, params.model, manifest.task)
        self._freezer, self._stages = Freezer(self.model), plan_stages(params)
        for stage in self._stages:  # Raises for a name that matches no layer, before training.
            self._freezer.freeze(stage.frozen)
        self._compile(self._stages[0])
        self._num_synchronized = count_synchronized_layers(self.model, device.num_replicas)
        self.stopwatch = Stopwatch(COMPUTE, CHECKPOINT, *([INPUT] if device.backend == "jax" else []))
        self._is_resident = is_resident(
            params.residency,
            device.backend,
            records.decoded_bytes(manifest, TRAIN) // self._share.count,
            params.in_memory_mib,
        )
        distribution = device.distribution if device.backend == "jax" else None
        self._mesh = None if distribution is None else distribution.device_mesh.backend_mesh
        self._validation: Validation | None = None
        if VALIDATION in manifest.splits:
            self._validation = Validation(records_dir, manifest, self.batch_size, params.in_memory_mib, self._share)
        self._loop = self._make_loop()
        self._shared_model: SharedModel | None = None
        if self._validation is not None and (self._is_resident or self._share.count > 1):
            shape, _ = manifest.interface.batch_shapes(self.batch_size, with_margin=False)[0]
            self._shared_model = SharedModel(self.model, shape, self._mesh, self._share)
            if self._is_resident and self._validation.held is not None:
                self._shared_model.hold(self._validation.held.inputs, self._validation.most)
        # The metric that decides the best epoch and early stopping.
        self._judged_by = "loss" if self._validation is None else "validation_loss"
        self.progress = TrainingProgress(identity=self._identity(), batch_size=self.batch_size)
        self._best: Mapping[str, Array] | None = None
        self._writer = checkpoints.Writer()
        self._parts: PartsWriter | None = None
        if params.sharding == FULLY_SHARDED and company.hosts.count > 1:
            session, hosts = company.agree(time.time_ns()), company.hosts
            self._parts = PartsWriter(checkpoint_dir, hosts.index, hosts.count, session, company)
        self._is_asked_to_end: Callable[[], bool] = lambda: False
        self._unchanged = unchanged  # Verification of the records; checkpoints wait for it.

    def _make_loop(self) -> Loop:
        params, manifest = self.params, self.manifest
        mesh, program = self._mesh, self._plan(self._is_resident)
        if self._is_resident:
            assert program is not None
            beside = self._validation.held_bytes if self._validation is not None else 0
            if self.device.accelerator == "cpu" or self.company.agree(fits(program, mesh, beside)):
                examples = records.load_split(self._records_dir, manifest, TRAIN, with_margin=True, share=self._share)
                feed = ResidentFeed(program, examples, params.seed, mesh, self._share)
                return DeviceLoop(self, program, feed, mesh)
            if params.residency == DEVICE:
                raise InputError(
                    "The training split does not fit in the device's memory beside the model, as residency=device asks "
                    "for. Set training.residency to auto, or lower training.batch_size_per_replica."
                )
            progress.say(
                _STEP, "the data do not fit in the device's memory beside the model: they are streamed from the host"
            )
            self._is_resident, program = False, self._plan(False)
        reader = open_training_split(
            self._records_dir,
            manifest,
            self.batch_size,
            params.seed,
            params.in_memory_mib,
            params.shuffle_buffer,
            self._share,
        )
        if program is not None:
            return DeviceLoop(self, program, HandedOverFeed(program, reader, mesh), mesh)
        from tpu_components.train_model.callbacks import FitLoop

        return FitLoop(self, reader)

    def _plan(self, resident: bool) -> Program | None:
        """Return the program of the JAX backend; None for TensorFlow."""
        if self.device.backend != "jax":
            return None
        batch = self.manifest.interface.batch_shapes(self.batch_size)
        return plan_program(self.model, batch, self._num_examples, self.params, resident, self.device.accelerator)

    def _compile(self, stage: PlannedStage) -> None:
        """Compile the model for a stage: its trainable layers and a new optimizer."""
        import keras

        if stage is not self._stages[0]:  # Makes random draws independent of the step that the session started at.
            keras.utils.set_random_seed((self.params.seed + stage.number) % 2**32)
        self._stage, self._num_learning = stage, self._freezer.freeze(stage.frozen)
        with self.device.scope():
            judged = compile_model(
                self.model,
                self.manifest.interface,
                stage.settings,
                self.device.num_replicas,
                self.steps,
                self.device.jit_compile,
                weigh_classes(stage.settings, self.manifest.class_names, self.manifest.split(TRAIN).class_counts),
            )
        # Maps each weight to the variable that is validated and saved for it: its running average, or the weight.
        names = {id(variable): name for name, variable in self.variables().items()}
        self._judged = {f"weight/{i:05d}": names[id(variable)] for i, variable in enumerate(judged)}

    def _enter_stage_of(self, epoch: int) -> None:
        """Switch to the stage of an epoch (from 0), if it is another one."""
        if (stage := stage_of(self._stages, epoch)) is not self._stage:
            self._compile(stage)
            self._loop.take_up_model()
            if self._shared_model is not None:
                self._shared_model.take_up_model()

    def _say_stage(self) -> None:
        stage, settings = self._stage, self._stage.settings
        if stage.number and (self.progress.epoch, self.progress.step) == (stage.first_epoch, 0):
            frozen = f"{', '.join(stage.frozen)} frozen" if stage.frozen else "nothing frozen"
            progress.say(
                _STEP,
                f"stage {stage.number}/{len(self._stages)}: {settings.epochs} epochs, learning rate "
                f"{settings.learning_rate:g}, {frozen}: {self._num_learning:,} parameters are trainable",
            )

    def _identity(self) -> str:
        return _digest(
            _fixed(self.params),
            self.manifest.fingerprint,
            self.device.backend,
            self.device.precision,
            self.model.get_config(),
        )

    def variables(self) -> dict[str, Any]:
        """Return all variables that a step changes, by name: weights, random state, optimizer, running metrics."""
        kinds = {
            "weight": self.model.variables,
            "optimizer": self.model.optimizer.variables,
            "metric": self.model.metrics_variables,
        }
        return {f"{kind}/{i:05d}": variable for kind, some in kinds.items() for i, variable in enumerate(some)}

    def _weights(self) -> dict[str, Any]:
        return {name: variable for name, variable in self.variables().items() if name in self._judged}

    def examples_before(self, step: int) -> int:
        """Return the number of examples in the first `step` steps of an epoch, without the last batch's padding."""
        return min(step * self.batch_size, self._num_examples)

    def run(self) -> float | None:
        """Train to the end. Returns the end of the first step, by `time.monotonic`; None if no step was left."""
        if self._validation is None:
            progress.say(_STEP, "there is no validation split: the best epoch is that of the lowest training loss")
        if self._parts is not None:
            self._parts.check_folder()
        restored = self._restore()
        import tensorflow as tf

        curves = tf.summary.create_noop_writer()
        if self._is_writer:
            if restored is None:  # Delete the curves of another run.
                shutil.rmtree(self._checkpoint_dir / _TENSORBOARD_DIR, ignore_errors=True)
            # Checkpoints hold optimizer state, averages and two sets of weights; the model's folder two more sets.
            weight_bytes = sum(array.nbytes for array in checkpoints.snapshot(self._weights()).values())
            storage.require_free_bytes(self._checkpoint_dir, 7 * weight_bytes)
            curves = tf.summary.create_file_writer(str(self._tensorboard_dir()))
        continued_from = None if restored is None else self.progress.saved_at
        self._sessions.claim(self.progress.identity, continued_from, self._first_step_moment)
        try:
            with termination.put_off() as self._is_asked_to_end:
                self._run_epochs(restored, curves)
                self._writer.wait()
        finally:
            self._writer.close()
        return self._loop.first_step_at

    def _first_step_moment(self) -> float | None:
        """Return the end of this session's first step, in seconds since 1970; None before."""
        at = self._loop.first_step_at
        return None if at is None else time.time() - (time.monotonic() - at)

    def _run_epochs(self, restored: Mapping[str, Array] | None, curves: Any) -> None:
        plural = self.manifest.input.plural
        trace = profiler(self.device.backend)
        profiled = self.params.profile_steps if self._is_writer else 0
        profile = StepProfile(profiled, self.batch_size, self._tensorboard_dir(), *trace)
        self._epochs_begun: float | None = None
        if self._is_writer:
            epochs = f"{self.params.epochs} epochs{' at most' if self.params.early_stopping_epochs else ''}"
            progress.say(
                _STEP,
                f"training: {self._num_examples:,} {plural}, {self.steps:,} steps an epoch, {epochs}; the first step "
                "compiles the model",
            )
        while self.progress.epoch < self.params.epochs and not self._should_stop():
            epoch = self.progress.epoch
            self._enter_stage_of(epoch)
            self._say_stage()
            left = self._num_examples - self.examples_before(self.progress.step)
            self._waited_before = self.stopwatch.waited_seconds
            with (
                progress.track(f"{_STEP} epoch {epoch + 1}/{self.params.epochs}", left, plural) as shown,
                profile.watching(shown, left) as bar,
            ):
                if self._loop.first_step_at is None:
                    self._epochs_begun = time.monotonic()
                logs = self._loop.run_epoch(epoch, bar, restored)
            restored = None
            self._end_epoch(logs, curves)
            self._end_if_asked()

    def _tensorboard_dir(self) -> Path:
        uri = os.environ.get(_LOG_DIR, "")
        return Path(uri) if uri and not storage.is_on_google(uri) else self._checkpoint_dir / _TENSORBOARD_DIR

    def _publish_curves(self) -> None:
        """Copy the curves to the folder of the platform's TensorBoard, if the folder is in a bucket.

        Copies whole files after every epoch: a mounted bucket shows a file to others only after it is closed.
        """
        uri = os.environ.get(_LOG_DIR, "")
        if storage.is_on_google(uri):
            published = storage.mounted(uri)
            for path in (*self._tensorboard_dir().rglob("events.*"), *self._tensorboard_dir().glob(f"{PROFILES}/*/*")):
                target = published / path.relative_to(self._tensorboard_dir())
                storage.write_bytes(target, path.read_bytes())

    def _restore(self) -> Mapping[str, Array] | None:
        """Resume from the checkpoint of this run, if host 0 has one; returns its arrays.

        Each host reads the parts of its devices if weights are sharded; else host 0 sends the arrays to the others.
        """
        loaded = self._load() if self._is_writer or self._parts is not None else None
        told = self.company.share(json.dumps(None if loaded is None else dataclasses.asdict(self.progress)).encode())
        if (saved := json.loads(told)) is None:
            self._best = None
            return None
        self.progress = now = TrainingProgress(**saved)
        self._enter_stage_of(now.epoch if now.step else now.epoch - 1)  # The stage of the saved optimizer.
        arrays = self._taken(loaded)
        with self.device.scope():
            checkpoints.restore(self.variables(), arrays)
            if now.batch_size != self.batch_size:
                self._change_batch_size(now)
        progress.say(_STEP, f"continuing at epoch {now.epoch + 1}, step {now.step} of {self.steps}")
        return arrays

    def _taken(self, loaded: dict[str, Array] | None) -> Mapping[str, Array]:
        """Return the checkpoint's arrays on this host: `loaded` if weights are sharded, else the arrays of host 0."""
        if self._parts is None:
            arrays = loaded or checkpoints.snapshot(self.variables())
            return self.company.share_arrays({name: np.asarray(array) for name, array in arrays.items()})
        if loaded is None:
            raise InputError(
                f"Host {self.company.hosts.index} does not see the checkpoint that host 0 has in "
                f"{self._checkpoint_dir}. Start all hosts again, with one folder of checkpoints."
            )
        return loaded

    def _change_batch_size(self, now: TrainingProgress) -> None:
        """Convert the step to the batch size of this session, at the same share of the epoch.

        Examples that were seen before the change are not tracked: some may come twice in this epoch, or not at all.
        """
        now.step = now.step * now.batch_size // self.batch_size
        now.batch_size = self.batch_size
        # Schedules depend on the optimizer's steps, and the number of steps per epoch has changed.
        epochs = now.epoch - self._stage.first_epoch
        self.model.optimizer._iterations.assign(epochs * self.steps + now.step)
        progress.say(_STEP, f"the checkpoint is of another number of replicas; a batch has {self.batch_size} now")

    def _load(self) -> dict[str, Array] | None:
        """Load checkpoint and progress of this run; returns the arrays, None if there is no checkpoint of this run."""
        path = self._checkpoint_dir / checkpoints.CHECKPOINT_FILE
        if not path.is_file():
            return None
        arrays, saved = checkpoints.load_arrays(path)
        best = self._checkpoint_dir / checkpoints.BEST_FILE
        self._best, its_progress = checkpoints.load_arrays(best) if best.is_file() else (None, None)
        ours = [
            checkpoint is not None and checkpoint.identity == self.progress.identity
            for checkpoint in (saved, its_progress)
        ]
        # Another run may have used the folder and died after it wrote best weights and before its first checkpoint.
        if saved is None or not ours[0] or (saved.best_epoch and not ours[1]):
            self._best = None
            progress.say(_STEP, f"the checkpoint in {self._checkpoint_dir} is of another training; starting fresh")
            return None
        self.progress = saved
        return arrays

    def is_due(self, seconds: float) -> bool:
        """Return whether a checkpoint is due: `checkpoint_seconds` after the last one, or at once after SIGTERM.

        Host 0 decides for all hosts. Another host that receives SIGTERM informs host 0 and continues until all end.
        If weights are sharded, all hosts save at the same step; else only host 0 saves.
        """
        if not self._is_writer and self._is_asked_to_end():
            self.company.ask_to_end()
        is_due = self._is_writer and (seconds >= self.params.checkpoint_seconds or self._ends())
        return is_due if self._parts is None else self.company.meet(is_due)

    def _ends(self) -> bool:
        return self._is_asked_to_end() or self.company.is_asked_to_end()

    def save_checkpoint(self, step: int, seconds: float) -> None:
        """Save a checkpoint, unless a value is not finite; then the last good checkpoint is kept.

        The values are copied from the device now; they are checked and written in the background.

        Raises:
            InputError: If a value of the previous checkpoint was not finite.
            Terminated: If SIGTERM has come; the checkpoint is written.
        """
        self._count_start()
        now = dataclasses.replace(
            self.progress,
            step=step,
            seconds=self.progress.seconds + seconds,
            waited_seconds=self.progress.waited_seconds + self._waited_in_epoch(),
            history=list(self.progress.history),
            saved_at=time.time(),
        )
        with self.stopwatch.measure(CHECKPOINT):
            arrays = checkpoints.snapshot(self.variables())
            self._writer.submit(lambda: self._write_checkpoint(arrays, now))
        self._end_if_asked()

    def _waited_in_epoch(self) -> float:
        return self.stopwatch.waited_seconds - self._waited_before

    def _count_start(self) -> None:
        """Add the time to this session's first step to the start-up time, once."""
        if self._epochs_begun is not None and self._loop.first_step_at is not None:
            self.progress.start_seconds += self._loop.first_step_at - self._epochs_begun
            self._epochs_begun = None

    def _end_if_asked(self) -> None:
        if self._is_writer and self._ends():
            self._writer.wait()
            progress.say(
                _STEP, f"SIGTERM: the checkpoint is saved in {self._checkpoint_dir}; the next start continues from it"
            )
            raise termination.Terminated

    def _write(self, name: str, arrays: Mapping[str, Array], now: TrainingProgress) -> None:
        """Write a file of the checkpoint. If weights are sharded, all hosts write their parts before the file."""
        path = self._checkpoint_dir / name
        if self._parts is None:
            checkpoints.save_arrays(path, arrays, now)
        elif (manifest := self._parts.write(arrays)) is not None:
            checkpoints.save_arrays(path, arrays, now, manifest)
            files = (checkpoints.CHECKPOINT_FILE, checkpoints.BEST_FILE)
            self._parts.clean(checkpoints.manifest_of(self._checkpoint_dir / file) for file in files)

    def _write_checkpoint(self, arrays: Mapping[str, Array], now: TrainingProgress) -> None:
        self._unchanged.result()
        if not checkpoints.all_finite(arrays):
            raise self._diverged(now.epoch, now.step, "a weight")
        self._write(checkpoints.CHECKPOINT_FILE, arrays, now)

    def divergence(self, step: int, what: str) -> InputError:
        """Wait for the last checkpoint and return the error for a value that is not finite.

        Raises:
            InputError: If a value of the last checkpoint was not finite.
        """
        self._writer.wait()
        return self._diverged(self.progress.epoch, step, what)

    def _diverged(self, epoch: int, step: int, what: str) -> InputError:
        path = self._checkpoint_dir / checkpoints.CHECKPOINT_FILE
        kept = f"The last good checkpoint is kept in {path}." if path.is_file() else "There was no checkpoint yet."
        return InputError(
            f"Training diverged: {what} is not finite at step {step} of epoch {epoch + 1}. Expected "
            f"finite numbers. Lower training.learning_rate ({self._stage.settings.learning_rate}), add "
            "training.warmup_epochs, "
            f"or use precision float32. {kept}"
        )

    def _end_epoch(self, logs: dict[str, float], curves: Any) -> None:
        import tensorflow as tf

        self._count_start()
        now, metric = self.progress, self.manifest.interface.task.metric
        seconds = logs["seconds"]
        now.waited_seconds += self._waited_in_epoch()
        waited_before = self.stopwatch.waited_seconds
        steps_of_stage = (now.epoch + 1 - self._stage.first_epoch) * self.steps
        entry = {
            "epoch": now.epoch + 1,
            **({"stage": self._stage.number} if self._stage.number else {}),
            **self._losses(logs),
            metric: logs[metric],
            "learning_rate": learning_rate_at(self.model.optimizer, steps_of_stage - 1),
            "examples": self._num_examples,
            "seconds": seconds,
            "examples_per_second": logs["examples"] / seconds,
        }
        with self.stopwatch.measure(CHECKPOINT):
            arrays = checkpoints.snapshot(self.variables())
        if not checkpoints.all_finite(arrays):
            raise self.divergence(self.steps, "a weight")
        weights = {name: arrays[judged] for name, judged in self._judged.items()}
        if self._validation is not None:
            if self.params.ema_decay:
                self._assign(weights)
            with self.stopwatch.measure(COMPUTE):
                entry |= self._validate(self._validation)
            if self.params.ema_decay:
                self._assign(arrays)
        judged = entry[self._judged_by]
        if not np.isfinite(judged):
            raise self.divergence(self.steps, f"the {_in_words(self._judged_by)}")
        # Time after this line counts to the next epoch: this entry is written now.
        now.history.append(entry | {f"{kind}_seconds": spent for kind, spent in self.stopwatch.take().items()})
        now.epoch, now.step, now.seconds = now.epoch + 1, 0, now.seconds + seconds
        if now.best_loss is None or judged < now.best_loss:
            now.best_loss, now.best_epoch = judged, now.epoch
            self._best = weights
        if self._is_writer or self._parts is not None:
            with self.stopwatch.measure(CHECKPOINT):
                self._save_epoch(arrays, weights if now.best_epoch == now.epoch else None)
        now.end_seconds += self.stopwatch.waited_seconds - waited_before
        with curves.as_default(step=now.epoch):
            for name in entry.keys() - {"epoch", "examples"}:
                tf.summary.scalar(name, entry[name])
        if self._is_writer:
            curves.flush()
            self._publish_curves()
        progress.say(_STEP, _epoch_line(entry, now, self.params.epochs, self.manifest))

    def _save_epoch(self, arrays: Mapping[str, Array], best: Mapping[str, Array] | None) -> None:
        now = dataclasses.replace(self.progress, history=list(self.progress.history), saved_at=time.time())

        def write() -> None:
            self._unchanged.result()
            if best is not None:  # First, because the checkpoint refers to these weights.
                self._write(checkpoints.BEST_FILE, best, now)
            self._write(checkpoints.CHECKPOINT_FILE, arrays, now)

        self._writer.submit(write)

    def _losses(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Return an epoch's mean loss per example, comparable with the validation loss, and the model's penalty."""
        # Keras divides the loss by the size of full batches, though padding has weight zero.
        full = self.steps * self.batch_size / self._counted_examples
        if UNPENALIZED_LOSS not in logs:
            return {"loss": logs["loss"] * full}
        # Keras divides a metric by the sum of weights. The rest of the full-batch loss is the penalty.
        loss = logs[UNPENALIZED_LOSS] * self._num_examples / self._counted_examples
        return {"loss": loss, "penalty": logs["loss"] - loss / full}

    def _assign(self, arrays: Mapping[str, Array]) -> None:
        with self.device.scope():
            checkpoints.restore(self._weights(), {name: arrays[name] for name in self._judged})

    def _validate(self, validation: Validation) -> dict[str, float]:
        """Return loss and metric of the validation split; every host evaluates its share."""
        interface, losses, scores = self.manifest.interface, [], []
        for places, examples in validation.parts():
            if self._shared_model is not None:
                outputs = self._shared_model.answers(places, examples.inputs)
            else:
                outputs = predict(
                    self.model, examples.inputs, self.params.batch_size_per_replica, self.device.num_replicas
                )
            losses.append(interface.task.losses(examples.labels, outputs))
            scores.append(interface.task.scores(examples.labels, outputs))
        return {
            "validation_loss": float(self.company.gather(np.concatenate(losses)).mean()),
            f"validation_{interface.task.metric}": float(self.company.gather(np.concatenate(scores)).mean()),
        }

    def _time(self) -> dict[str, float]:
        """Return the seconds of all epochs by what the host waited for."""
        return {
            kind: sum(entry[f"{kind}_seconds"] for entry in self.progress.history if f"{kind}_seconds" in entry)
            for kind in self.stopwatch.kinds
        }

    def _should_stop(self) -> bool:
        patience, now = self.params.early_stopping_epochs, self.progress
        if patience and now.epoch - max(now.best_epoch, self._stages[-1].first_epoch) >= patience:
            progress.say(_STEP, f"stopped early: no lower {_in_words(self._judged_by)} for {patience} epochs")
            return True
        return False

    def result(self, first_step_seconds: float) -> TrainResult:
        now, last = self.progress, self.progress.history[-1]
        trained = max(now.seconds - now.start_seconds - now.waited_seconds, 0.0)
        paid = self._sessions.paid_seconds(trained, now.waited_seconds + now.end_seconds)
        return TrainResult(
            epochs=now.epoch,
            best_epoch=now.best_epoch,
            judged_by=self._judged_by,
            steps=now.epoch * self.steps,
            examples_seen=now.epoch * self._num_examples,
            seconds=now.seconds,
            examples_per_second=statistics.median(entry["examples_per_second"] for entry in now.history),
            metrics={name: last[name] for name in ("loss", self.manifest.interface.task.metric)},
            backend=self.device.backend,
            accelerator=self.device.accelerator,
            num_replicas=self.device.num_replicas,
            precision=self.device.precision,
            num_synchronized_layers=self._num_synchronized,
            first_step_seconds=first_step_seconds,
            time=self._time(),
            sessions=self._sessions.count,
            goodput=paid.goodput,
            paid_seconds=dataclasses.asdict(paid),
        )

    def save(self, output: Path, result: TrainResult) -> None:
        """Write the model's folder atomically."""
        import keras

        now = self.progress
        keras.distribution.set_distribution(None)  # Only this host builds the copy that verifies the saved model.
        progress.say(_STEP, _time_line(result.time))
        if result.sessions > 1:
            progress.say(
                _STEP, f"goodput {result.goodput:.0%}: of the time of {result.sessions} sessions went into the result"
            )
        self._freezer.freeze(())  # Restore the trainable layers of the built model.
        with storage.staged_directory(output) as staged:
            save_architecture(self.model, staged, self._code)
            self._save_weights(staged)
            lines = [json.dumps(entry) for entry in now.history]
            (staged / HISTORY_FILE).write_text("\n".join(lines) + "\n")
            if self._tensorboard_dir().is_dir():
                storage.link_tree(self._tensorboard_dir(), staged / _TENSORBOARD_DIR)
            copy_vocabulary(self._records_dir, staged, self.manifest.input)
            save_trained_on(self._records_dir, staged)
            ModelInfo(
                name=self.params.model,
                parameters=dict(self.params.model_parameters),
                class_names=self.manifest.class_names,
                input=self.manifest.input,
                task=self.manifest.task,
                dataset_fingerprint=self.manifest.fingerprint,
                training={
                    **dataclasses.asdict(self.params),
                    **dataclasses.asdict(result),
                    "host": devices.describe_host(),
                },
                digests={name: file_sha256(staged / name) for name in (ARCHITECTURE_FILE, BEST_WEIGHTS_FILE)},
            ).save(staged)

    def _save_weights(self, directory: Path) -> None:
        """Write the weights of the last epoch and of the best one."""
        best, assign = self._best, self._assign
        if self._parts is None:
            arrays = checkpoints.snapshot(self.variables())
        else:  # This host's devices hold only parts: read all weights from the files into host memory.
            arrays, _ = checkpoints.load_arrays(self._checkpoint_dir / checkpoints.CHECKPOINT_FILE)
            best, _ = checkpoints.load_arrays(self._checkpoint_dir / checkpoints.BEST_FILE)
            checkpoints.hold(self.variables(), arrays)  # Keras saves the optimizer too.
            assign = functools.partial(checkpoints.hold, self._weights())
        assign({name: arrays[judged] for name, judged in self._judged.items()})
        self.model.save_weights(directory / LAST_WEIGHTS_FILE)
        if best is not None:
            assign(best)
        self.model.save_weights(directory / BEST_WEIGHTS_FILE)


def _in_words(judged_by: str) -> str:
    return "training loss" if judged_by == "loss" else judged_by.replace("_", " ")


def _time_line(time: Mapping[str, float]) -> str:
    """Format the shares of the training time for the log.

    Example:
        >>> _time_line({"compute": 9.0, "input": 0.5, "checkpoint": 0.0, "host": 0.5})
        'time of epochs 10.0 s: 90% computing; waiting: 5% for input, 0% for checkpoints, 5% for the host'
    """
    total = sum(time.values())
    shares = {kind: seconds / total if total else 0.0 for kind, seconds in time.items()}
    words = {INPUT: "input", CHECKPOINT: "checkpoints", HOST: "the host"}
    waits = [f"{shares[kind]:.0%} for {name}" for kind, name in words.items() if kind in shares]
    what = "computing" if INPUT in shares else "computing and input"
    return f"time of epochs {total:.1f} s: {shares[COMPUTE]:.0%} {what}; waiting: {', '.join(waits)}"


def _epoch_line(entry: dict[str, float], now: TrainingProgress, epochs: int, manifest: Manifest) -> str:
    metric = manifest.interface.task.metric
    line = f"epoch {entry['epoch']:.0f}/{epochs}: loss {entry['loss']:.4f}, {metric} {entry[metric]:.4f}"
    if "validation_loss" in entry:
        line += f", validation loss {entry['validation_loss']:.4f}, {metric} {entry[f'validation_{metric}']:.4f}"
    line += f", {entry['examples_per_second']:,.0f} {manifest.input.plural}/s, {entry['seconds']:.0f} s"
    left = now.seconds / now.epoch * (epochs - now.epoch)
    return line + (f", {left / 60:.0f} min left" if left >= 60 else "")
