"""A session: the part of a training run that one process executes, with its model, progress and checkpoints."""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress, termination
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import keras
from tpu_components.core.examples.artifacts import TRAIN, Manifest
from tpu_components.core.examples.feeding import steps_per_epoch
from tpu_components.core.machines.device import Device
from tpu_components.core.machines.hosts import ProcessGroup
from tpu_components.core.models.lookup import build_model
from tpu_components.core.models.trained import check_rebuilds
from tpu_components.core.models.training_step.compiling import compile_model, say_what_is_used, used_hyperparameters
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.losses import weigh_classes
from tpu_components.core.models.training_step.optimizers import check_accumulation, own_optimizer
from tpu_components.core.models.training_step.sharding import FULLY_SHARDED
from tpu_components.core.models.training_step.stages import Freezer, PlannedStage, plan_stages, stage_of
from tpu_components.train_model.checkpoints import checkpoint
from tpu_components.train_model.checkpoints.checkpoint import TrainingProgress
from tpu_components.train_model.checkpoints.parts import Array, PartsWriter
from tpu_components.train_model.goodput import GoodputRecorder
from tpu_components.train_model.initial_model import InitialModel
from tpu_components.train_model.profiling import CHECKPOINT, COMPUTE, INPUT, Stopwatch
from tpu_components.train_model.result import STEP
from tpu_components.train_model.step_times import StepTimes

# Parameters that may change between two sessions of one run. Only the number of replicas changes the result.
_FREE_TO_CHANGE = ("checkpoint_seconds", "num_replicas", "profile_steps", "residency", "steps_per_execution")


def run_digest(params: TrainParams, initial: InitialModel | None, manifest: Manifest, *program: Any) -> str:
    """Return the SHA-256, in hex, of everything that must be the same in all sessions of a run.

    Unlike `digest_of`, this function hashes the `repr` of the values, and it leaves out the initial model if there is
    none. The digest is therefore the same as in earlier versions, and training can continue from their checkpoints.

    Args:
        params: Hyper-parameters of the training run.
        initial: Model whose weights training starts with, or None. Only its digest is hashed.
        manifest: Manifest of the records. Only its fingerprint is hashed.
        program: Backend, precision and the model's configuration, which are known once the model is built.
    """
    fixed = {name: value for name, value in dataclasses.asdict(params).items() if name not in _FREE_TO_CHANGE}
    del fixed["initial_model"]
    fixed |= {"initial_model": initial.digest} if initial else {}
    return hashlib.sha256(repr((sorted(fixed.items()), manifest.fingerprint, *program)).encode()).hexdigest()


class Session:
    """State of a training run in this process.

    Args:
        params: Hyper-parameters of the training run.
        manifest: Manifest of the records.
        device: Device to train on.
        checkpoint_dir: Folder of the checkpoints.
        unchanged: Future that is done when the records have been verified. No checkpoint is written before that.
        group: Process group of the hosts.
        recorder: Writes the times of this session to the file that has the times of the run's earlier sessions.
        initial: Model whose weights training starts with, or None for new weights.

    Attributes:
        initial: Model whose weights the training started with, or None for new weights.
        class_weights: Weight of each class in the loss, from `weigh_classes`. Empty if all classes weigh the same.
        model: The keras.Model, compiled for `stage`.
        used: Hyper-parameters that training uses. They can differ from `params`; see `used_hyperparameters`.
        progress: Progress of the run.
        steps: Number of steps per epoch.
        batch_size: Examples per step, summed over all replicas.
        has_stepped: Whether this session's first step has ended.
        is_compiled: Whether the program of the current stage is compiled: True once this session has finished a step of
            the stage.
        step_times: Histogram of step times, over all sessions on the same devices.
    """

    def __init__(
        self,
        params: TrainParams,
        manifest: Manifest,
        device: Device,
        checkpoint_dir: Path,
        unchanged: "Future[None]",
        group: ProcessGroup,
        recorder: GoodputRecorder,
        initial: InitialModel | None = None,
    ) -> None:
        self.params = params
        self.manifest = manifest
        self.device = device
        self.group = group
        self.initial = initial
        self.checkpoint_dir = checkpoint_dir
        self.recorder = recorder
        self.is_writer = group.hosts.is_writer
        self.batch_size = params.batch_size_per_replica * device.num_replicas
        self.num_examples = manifest.split(TRAIN).num_examples
        self.steps = steps_per_epoch(self.num_examples, self.batch_size)
        self.class_weights = weigh_classes(params, manifest.class_names, manifest.split(TRAIN).class_counts)
        keras.utils.set_random_seed(params.seed)
        with device.scope():
            warn = functools.partial(progress.say, STEP)
            self.model = build_model(params.model, manifest.interface, params.model_parameters, warn)
        if initial:
            with device.scope():
                initial.copy_to(self.model)
        self.freezer = Freezer(self.model)
        self.stages = plan_stages(params)
        self.step_times = StepTimes()
        # Raises for a name that matches no layer, before training.
        self._most_trainable = max(self.freezer.freeze(stage.frozen) for stage in self.stages)
        self._compile(self.stages[0])
        self.code = check_rebuilds(self.model, params.model, manifest.task)
        if message := say_what_is_used(self.model, self.stage.params):
            warn(message)
        self.used = used_hyperparameters(self.model, manifest.interface, params, self.steps)
        self.stopwatch = Stopwatch(COMPUTE, CHECKPOINT, *([INPUT] if device.backend == "jax" else []))
        identity = run_digest(params, initial, manifest, device.backend, device.precision, self.model.get_config())
        self.progress = TrainingProgress(identity=identity, batch_size=self.batch_size)
        self.best: Mapping[str, Array] | None = None  # Weights of the best epoch.
        self.has_stepped = self.is_compiled = False
        self._unchanged = unchanged
        self.writer = checkpoint.Writer()
        self.parts: PartsWriter | None = None
        if params.sharding == FULLY_SHARDED and group.hosts.count > 1:
            self.parts = PartsWriter(checkpoint_dir, group.agree(time.time_ns()), group)
        self._running_metrics: Mapping[str, Array] = {}  # Of the checkpoint, until they are restored.
        self.is_asked_to_end: Callable[[], bool] = lambda: False

    def _compile(self, stage: PlannedStage) -> None:
        """Freeze the layers of a training stage, and compile the model with a new optimizer."""
        if stage is not self.stages[0]:  # Random draws must not depend on the step that the session started at.
            keras.utils.set_random_seed((self.params.seed + stage.number) % 2**32)
        self.stage, self.num_trainable = stage, self.freezer.freeze(stage.frozen)
        self.step_times.is_counting = self.num_trainable == self._most_trainable
        with self.device.scope():
            averages = compile_model(
                self.model,
                self.manifest.interface,
                stage.params,
                self.device.num_replicas,
                self.steps,
                self.device.jit_compile,
                self.class_weights,
            )
        check_accumulation(self.model.optimizer, self.steps * stage.params.epochs)
        # Maps each weight to the variable that is validated and saved for it: its running average, or the weight.
        names = {id(variable): name for name, variable in self.variables().items()}
        self._averages = {f"weight/{i:05d}": names[id(variable)] for i, variable in enumerate(averages)}

    def enter_stage_of(self, epoch: int) -> None:
        """Compile the model for the training stage of an epoch (from 0), unless this stage is the current one."""
        if (stage := stage_of(self.stages, epoch)) is not self.stage:
            self._compile(stage)
            self.is_compiled = False

    def variables(self) -> dict[str, Any]:
        """Return all variables that a step changes, by name: weights, random state, optimizer and running metrics."""
        kinds = {
            "weight": self.model.variables,
            "optimizer": self.model.optimizer.variables,
            "metric": self.model.metrics_variables,
        }
        return {f"{kind}/{i:05d}": variable for kind, some in kinds.items() for i, variable in enumerate(some)}

    @property
    def learning_rate(self) -> float:
        """Peak learning rate of the current stage, for one replica."""
        used = self.used["stages"][self.stage.number - 1] if self.stage.number else self.used
        return float(used["learning_rate"])

    def weights(self) -> dict[str, Any]:
        """Return the model's weights, by name. Variables of the optimizer and of metrics are not included."""
        return {name: variable for name, variable in self.variables().items() if name in self._averages}

    def select_weights(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the values to validate and save as the model's weights, by the names that `weights` uses.

        These values are the weights or, if `ema_decay` is set, the running averages of the weights.

        Args:
            arrays: Values of all variables, by name.
        """
        return {weight: arrays[average] for weight, average in self._averages.items()}

    def assign_weights(self, arrays: Mapping[str, Array]) -> None:
        """Assign to each weight the array that has the weight's name."""
        weights = self.weights()
        with self.device.scope():
            checkpoint.restore(weights, {name: arrays[name] for name in weights})

    def examples_before(self, step: int) -> int:
        """Return the number of examples in the first `step` steps of an epoch. Padding does not count as examples."""
        return min(step * self.batch_size, self.num_examples)

    def begin_epoch(self) -> float:
        """Start the clocks of an epoch. Return the start time, from `time.monotonic`."""
        self._epoch_begun = self._saved_at = time.monotonic()
        return self._epoch_begun

    def end_first_step(self) -> None:
        """Record that the first step of the session or of a training stage has ended. Later calls do nothing."""
        if self.is_compiled:
            return
        self.progress.start_seconds += time.monotonic() - self._epoch_begun
        self.stopwatch.take_waited()  # Earlier waiting counts as start-up.
        if not self.has_stepped:
            self.recorder.begin()
        self.has_stepped = self.is_compiled = True

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due: `checkpoint_seconds` after the last one, or immediately after SIGTERM.

        Host 0 decides for all hosts. If another host receives SIGTERM, it informs host 0 and continues until all hosts
        end. If weights are sharded, all hosts save at the same step. Otherwise, only host 0 saves. No checkpoint is due
        after the last step of an epoch, because a checkpoint is always written at the end of an epoch.

        Args:
            step: Number of finished steps of the epoch.
        """
        if step >= self.steps:
            return False
        if not self.is_writer and self.is_asked_to_end():
            self.group.ask_to_end()
        seconds = time.monotonic() - self._saved_at
        is_due = self.is_writer and (seconds >= self.params.checkpoint_seconds or self._ends())
        return is_due if self.parts is None else self.group.meet(is_due)

    def _ends(self) -> bool:
        return self.is_asked_to_end() or self.group.is_asked_to_end()

    def save_checkpoint(self, step: int) -> None:
        """Save a checkpoint within an epoch, after `step` steps.

        The values are copied from the device immediately. They are checked and written in the background. If a value is
        not finite, nothing is written, and the last good checkpoint is kept.

        Raises:
            InputError: If a value of the previous checkpoint was not finite.
            Terminated: If SIGTERM was received. The checkpoint is written first.
        """
        seconds = self.progress.seconds + time.monotonic() - self._epoch_begun
        waited_seconds = self.progress.waited_seconds + self.stopwatch.waited_seconds
        with self.stopwatch.measure(CHECKPOINT):
            arrays = checkpoint.snapshot(self.variables())
            self.write(arrays, step=step, seconds=seconds, waited_seconds=waited_seconds)
        self.end_if_asked()
        self._saved_at = time.monotonic()

    @property
    def _has_checkpoints(self) -> bool:
        """Whether this host reads and writes checkpoints.

        True on host 0. On other hosts, True only if weights are sharded over the hosts.
        """
        return self.is_writer or self.parts is not None

    def write(self, arrays: Mapping[str, Array], best: Mapping[str, Array] | None = None, **changes: Any) -> None:
        """Write a checkpoint in the background, if this host writes checkpoints.

        If weights are sharded, all hosts write their parts first.

        Args:
            arrays: Values of all variables.
            best: Weights of the best epoch if they have changed since the last checkpoint, otherwise None.
            changes: Values that replace fields of `progress` in the checkpoint.
        """
        if not self._has_checkpoints:
            return
        history = list(self.progress.history)
        now = dataclasses.replace(
            self.progress,
            history=history,
            saved_at=time.time(),
            step_counts=self.step_times.counts,
            timed_on=self.device.name,
            **changes,
        )

        def work() -> None:
            self._unchanged.result()
            if not checkpoint.all_finite(arrays):
                raise self._diverged(now.epoch, now.step, "a weight")
            if best is not None:  # First, because the checkpoint refers to these weights.
                self._write_file(checkpoint.BEST_FILE, best, now)
            self._write_file(checkpoint.CHECKPOINT_FILE, arrays, now)

        self.writer.submit(work)

    def _write_file(self, name: str, arrays: Mapping[str, Array], now: TrainingProgress) -> None:
        path = self.checkpoint_dir / name
        if self.parts is None:
            checkpoint.save_arrays(path, arrays, now)
        elif (manifest := self.parts.write(arrays)) is not None:
            checkpoint.save_arrays(path, arrays, now, manifest)
            files = (checkpoint.CHECKPOINT_FILE, checkpoint.BEST_FILE)
            self.parts.clean(checkpoint.manifest_of(self.checkpoint_dir / file) for file in files)

    def end_if_asked(self) -> None:
        """On host 0, if any host has received SIGTERM, wait until the checkpoint is written and raise Terminated."""
        if self.is_writer and self._ends():
            self.writer.wait()
            progress.say(
                STEP,
                f"SIGTERM received: the checkpoint was saved in {self.checkpoint_dir}, and the next start "
                "continues from it",
            )
            raise termination.Terminated

    def divergence(self, step: int, what: str) -> InputError:
        """Wait until the last checkpoint is written, then return the error to raise for a value that is not finite.

        Args:
            step: Step of the current epoch, from 1.
            what: Name of the value for the message, for example "the loss".

        Raises:
            InputError: If a value of the last checkpoint was not finite.
        """
        self.writer.wait()
        return self._diverged(self.progress.epoch, step, what)

    def _diverged(self, epoch: int, step: int, what: str) -> InputError:
        path = self.checkpoint_dir / checkpoint.CHECKPOINT_FILE
        kept = f"The last good checkpoint is kept in {path}." if path.is_file() else "There was no checkpoint yet."
        advice = f"Lower training.learning_rate ({self.learning_rate:g}), add training.warmup_epochs"
        if own_optimizer(self.model, self.stage.params) is not None:
            advice = (
                f"Lower the learning rate of the optimizer that the model is compiled with ({self.learning_rate:g}), "
                "set training.optimizer and training.learning_rate"
            )
        return InputError(
            f"Training diverged: {what} is not finite at step {step} of epoch {epoch + 1}. {advice}, or use precision "
            f"float32. {kept}"
        )

    def restore(self, replay: Callable[[Mapping[str, float]], None]) -> bool:
        """Resume from the checkpoint of this run if host 0 has one. Return True if the session was resumed.

        If weights are sharded, each host reads the parts of its devices. Otherwise, host 0 sends the arrays to all
        hosts.

        Args:
            replay: Function that is called with the history entry of each finished epoch, before any variable is
                restored.
        """
        if self.parts is not None:
            self.parts.check_folder()
        loaded = self._load() if self._has_checkpoints else None
        sent = self.group.broadcast(json.dumps(None if loaded is None else dataclasses.asdict(self.progress)).encode())
        if (saved := json.loads(sent)) is None:
            self.best = None
            return False
        self.progress = now = TrainingProgress(**saved)
        if now.timed_on == self.device.name:  # Steps on other devices say nothing about these devices.
            self.step_times.resume(now.step_counts)
        for entry in now.history:
            self.enter_stage_of(
                int(entry["epoch"]) - 1
            )  # A callback may read and change the learning rate of its stage.
            replay(entry)
        self.enter_stage_of(now.epoch if now.step else now.epoch - 1)  # The stage of the saved optimizer.
        if self.parts is None:
            arrays = loaded or checkpoint.snapshot(self.variables())
            loaded = {**self.group.broadcast_arrays({name: np.asarray(array) for name, array in arrays.items()})}
        elif loaded is None:
            raise InputError(
                f"Host {self.group.hosts.index} cannot read the checkpoint of host 0 in {self.checkpoint_dir}. "
                "Restart all hosts with one shared checkpoint folder."
            )
        with self.device.scope():
            checkpoint.restore(self.variables(), loaded)
            if now.batch_size != self.batch_size:
                self._change_batch_size(now)
        if now.step:
            self._running_metrics = {name: array for name, array in loaded.items() if name.startswith("metric/")}
        progress.say(STEP, f"continuing at epoch {now.epoch + 1}, step {now.step} of {self.steps}")
        return True

    def restore_metrics(self) -> None:
        """Restore the running metrics if the session has resumed within an epoch. Later calls do nothing.

        This is called after the start of an epoch, which resets the running metrics.
        """
        if self._running_metrics:
            checkpoint.restore({name: self.variables()[name] for name in self._running_metrics}, self._running_metrics)
            self._running_metrics = {}

    def _change_batch_size(self, now: TrainingProgress) -> None:
        """Convert the checkpoint's step to the batch size of this session, so that the same share of the epoch remains.

        A checkpoint does not record which examples the epoch has already used. After the change, this epoch may
        therefore use some examples twice and others not at all.
        """
        now.step = now.step * now.batch_size // self.batch_size
        now.batch_size = self.batch_size
        # Schedules depend on the optimizer's steps, and the number of steps per epoch has changed.
        epochs = now.epoch - self.stage.first_epoch
        self.model.optimizer._iterations.assign(epochs * self.steps + now.step)
        progress.say(
            STEP, f"the checkpoint was saved with another number of replicas; the batch size is now {self.batch_size}"
        )

    def _load(self) -> dict[str, Array] | None:
        """Load the checkpoint and set `progress`. Return the arrays, or None if the run has no checkpoint."""
        path = self.checkpoint_dir / checkpoint.CHECKPOINT_FILE
        if not path.is_file():
            return None
        arrays, saved = checkpoint.load_arrays(path)
        best = self.checkpoint_dir / checkpoint.BEST_FILE
        self.best, of_best = checkpoint.load_arrays(best) if best.is_file() else (None, None)
        identity = self.progress.identity
        # Another run may have used the folder, and ended after it wrote best weights but before its first checkpoint.
        is_best_ours = of_best is not None and of_best.identity == identity
        if saved is None or saved.identity != identity or (saved.best_epoch and not is_best_ours):
            progress.say(
                STEP,
                f"the checkpoint in {self.checkpoint_dir} belongs to another training run, so training starts "
                "from the beginning",
            )
            self.recorder.forget()
            return None
        self.progress = saved
        return arrays
