"""Training loops: a compiled program for the JAX backend, and Keras's `fit` for the TensorFlow backend.

`make_loop` returns the training loop for a session. With JAX, a feed provides the program's input: `ResidentFeed` keeps
the data in device memory, and `StreamedFeed` sends batches from the host.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.frameworks import jax, keras
from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.examples.feeding import DEVICE, Cut, EpochReader, is_resident, open_training_split
from tpu_components.core.machines.hosts import ProcessGroup
from tpu_components.core.models.training_step.hyperparameters import TrainParams
from tpu_components.core.models.training_step.program import Program, Watch, fits, state_of
from tpu_components.core.models.training_step.sharding import array_sharding
from tpu_components.train_model.profiling import COMPUTE, INPUT
from tpu_components.train_model.result import STEP
from tpu_components.train_model.session import Session

_LOOK_SECONDS = 0.25  # Time between two checks of the loss; default length of a block of steps.


class FitLoop:
    """Training loop of the TensorFlow backend. It calls Keras's `fit` once per epoch, on the batches of a reader.

    Attributes:
        is_resident: Whether the training split stays in device memory, which is never the case on this backend.
    """

    is_resident = False

    def __init__(self, session: Session, reader: EpochReader) -> None:
        self._session = session
        self._reader = reader

    def run_epoch(self, bar: progress.Progress) -> dict[str, float]:
        """Run the current epoch, or the rest of it after a checkpoint. Return the epoch's metrics by name.

        Args:
            bar: Progress bar to update.

        Raises:
            InputError: If training diverged.
        """
        session = self._session
        epoch, first = session.progress.epoch, session.progress.step
        times = session.step_times

        def end_step(batch: int, logs: Mapping[str, Any]) -> None:
            step = first + batch + 1
            loss = float(logs["loss"])
            if not np.isfinite(loss):
                raise session.divergence(step, "the loss")
            if batch:  # The first step of a call of `fit` includes its set-up.
                times.reach(step)
            else:
                times.start(step)
            session.end_first_step()
            bar.update(session.examples_before(step) - session.examples_before(step - 1), f"loss {loss:.4f}")
            if session.is_due(step):
                session.save_checkpoint(step)
                times.start(step)

        # `fit` resets the metrics before it calls `on_epoch_begin`.
        callback = keras.callbacks.LambdaCallback(lambda *_: session.restore_metrics(), on_train_batch_end=end_step)
        with session.stopwatch.measure(COMPUTE):
            logs = session.model.fit(
                self._reader.batches(epoch, first),
                initial_epoch=epoch,
                epochs=epoch + 1,
                shuffle=False,  # The reader shuffles. Keras warns when it is asked to shuffle a dataset.
                verbose=0,
                callbacks=[callback],
            ).history
        return {name: values[-1] for name, values in logs.items()}


class ResidentFeed:
    """A training split that stays in device memory. In each epoch, the host sends only the order of the examples."""

    def __init__(self, program: Program, examples: records.Examples, seed: int, share: Share) -> None:
        inputs, *_, self._order = program.source
        self._program = program
        self._seed = seed
        flat = examples.inputs.reshape(-1, *inputs.shape[1:])
        arrays = (flat, examples.labels, examples.weights)
        self._examples = tuple(put_everywhere(array, program.mesh, share, inputs.shape[0]) for array in arrays)
        self._source: Any = None
        self._pool = ThreadPoolExecutor(1)
        self._drawn: dict[int, Future[Any]] = {}

    def open(self, epoch: int, start_step: int) -> None:
        """Start an epoch. The order of the next epoch's examples is drawn in the background.

        Args:
            epoch: Index of the epoch, from 0.
            start_step: Ignored, because the compiled program itself counts the steps of the epoch.
        """
        order = self._drawn.pop(epoch, None) or self._pool.submit(self._draw, epoch)
        self._drawn = {epoch + 1: self._pool.submit(self._draw, epoch + 1)}
        self._source = (*self._examples, order.result())

    def _draw(self, epoch: int) -> Any:
        order = Cut(self._program.num_examples, self._program.batch_size).draw_order(self._seed, epoch)
        return put(order, self._program.mesh, self._order.sharded_axis)

    def take(self, limit: int) -> tuple[Any, int]:
        """Return the program's input for the next steps, and the number of these steps, which is at most `limit`."""
        return self._source, limit


class StreamedFeed:
    """Batches that the host streams to the device. The host prepares them while the device computes."""

    def __init__(self, program: Program, reader: EpochReader) -> None:
        self._program = program
        self._reader = reader
        self._batches: Iterator[tuple[np.ndarray, ...]] = iter(())

    def open(self, epoch: int, start_step: int) -> None:
        """Start an epoch.

        Args:
            epoch: Index of the epoch, from 0.
            start_step: Number of steps to skip at the beginning of the epoch.
        """
        self._batches = iter(self._reader.batches(epoch, start_step).as_numpy_iterator())

    def take(self, limit: int) -> tuple[Any, int]:
        """Return the program's input for the next steps, and the number of these steps, which is at most `limit`.

        A program that runs several steps per call gets a block of `block_steps` batches. If the block has fewer steps,
        it is padded. The program ignores the padding.
        """
        arrays, mesh = self._program.source, self._program.mesh
        source = next(self._batches)
        count = 1
        if self._program.loops:
            count = min(limit, self._program.block_steps)
            batch = source
            source = tuple(np.empty((self._program.block_steps, *part.shape), part.dtype) for part in batch)
            for i in range(count):
                for block, part in zip(source, batch if i == 0 else next(self._batches), strict=True):
                    block[i] = part
        return tuple(put_part(part, mesh, at.sharded_axis) for part, at in zip(source, arrays, strict=True)), count


def put(array: Any, mesh: Any, axis: int | None = None) -> Any:
    """Copy an array to the devices of a mesh, and return the copy.

    Every host passes the whole array.

    Args:
        array: The whole array.
        mesh: Devices of all hosts, or None for a single device.
        axis: Axis along which the array is sharded over the devices. With None, every device gets the whole array.
    """
    if jax.process_count() == 1:
        return jax.device_put(array, array_sharding(mesh, axis))
    return jax.make_array_from_callback(array.shape, array_sharding(mesh, axis), lambda index: array[index])


def put_part(array: Any, mesh: Any, axis: int | None) -> Any:
    """Copy an array to the devices of a mesh, sharded along an axis, and return the copy.

    Each host passes only its part of the array.
    """
    if jax.process_count() == 1:
        return put(array, mesh, axis)
    return jax.make_array_from_process_local_data(array_sharding(mesh, axis), array)


def put_everywhere(array: np.ndarray, mesh: Any, share: Share, length: int) -> Any:
    """Copy an array to every device, and return the copy. Each host passes only its share of the first axis.

    The devices exchange the shares, so no host needs to read the whole array.

    Args:
        array: This host's share of the array.
        mesh: Devices of all hosts, or None for a single device.
        share: Range of the first axis that this host has.
        length: Size of the first axis of the whole array.
    """
    if share == WHOLE:
        return put(array, mesh)
    own_devices = mesh.size // share.count
    ranges = [Share(host, share.count).within(length) for host in range(share.count)]
    rows = -(-max(map(len, ranges)) // own_devices) * own_devices  # Equal on every device.
    padded = np.zeros((rows, *array.shape[1:]), array.dtype)
    padded[: len(array)] = array

    def join(parts: Any) -> Any:
        return jax.numpy.concatenate([parts[host * rows : host * rows + len(own)] for host, own in enumerate(ranges)])

    return jax.jit(join, out_shardings=array_sharding(mesh, None))(put_part(padded, mesh, 0))


class _Pace:
    """Chooses the number of steps per block. The host checks the loss only between blocks.

    The number is `steps_per_execution` if this parameter is set. Otherwise, it is doubled or halved so that a block
    takes at most 0.25 seconds, or at most `checkpoint_seconds` if this is less.

    All hosts use the number that host 0 has chosen. Host 0 sends it after blocks 1, 2, 4, 8, …
    """

    def __init__(self, params: TrainParams, group: ProcessGroup) -> None:
        self.steps = params.steps_per_execution or 1
        self._is_fixed = params.steps_per_execution > 0
        self._group = group
        self._seconds = min(_LOOK_SECONDS, params.checkpoint_seconds)
        self._num_blocks = 0

    def learn(self, seconds: float) -> None:
        """Adapt `steps`, the number of steps per block, to the duration of the last block.

        Args:
            seconds: Duration of the last block, in seconds.
        """
        if self._is_fixed:
            return
        self._num_blocks += 1
        if self._group.hosts.count > 1 and self._num_blocks.bit_count() > 1:
            return
        if seconds < self._seconds / 2:
            self.steps *= 2
        elif seconds > self._seconds:
            self.steps = max(self.steps // 2, 1)
        self.steps = self._group.agree(self.steps)


class DeviceLoop:
    """Training loop of the JAX backend: feeds the compiled program, and checks for divergence a few times per second.

    Attributes:
        is_resident: Whether the training split stays in device memory.
    """

    def __init__(self, session: Session, program: Program, feed: ResidentFeed | StreamedFeed) -> None:
        self._session = session
        self._feed = feed
        self._model = program.model
        self._program = program
        self.is_resident = program.is_resident
        self._pace = _Pace(session.params, session.group)
        self._stage: Any = None  # Stage that `_run` is compiled for.
        self._to_profile = 0  # Steps until the end of the profile.

    def run_epoch(self, bar: progress.Progress) -> dict[str, float]:
        """Run the current epoch, or the rest of it after a checkpoint. Return the epoch's metrics by name.

        Args:
            bar: Progress bar to update.

        Raises:
            InputError: If training diverged.
        """
        session = self._session
        clock = session.stopwatch
        if session.stage is not self._stage:
            self._stage, self._run = session.stage, self._program.jit()
        first = step = shown = session.progress.step
        self._model.reset_metrics()
        session.restore_metrics()
        looked = before = time.monotonic()
        carry, watch = self._begin(step)
        with clock.measure(INPUT):
            self._feed.open(session.progress.epoch, step)
        times = session.step_times
        times.start(step)
        earlier: tuple[Watch, int] | None = None
        while step < session.steps:
            with clock.measure(INPUT):
                source, count = self._feed.take(min(self._to_profile or self._pace.steps, session.steps - step))
            with clock.measure(COMPUTE):
                if self._program.loops:
                    carry, watch = self._run(carry, watch, source, np.int32(count))
                else:
                    for _ in range(count):
                        carry, watch = self._run(carry, watch, source)
                if earlier is not None:  # One block computes while the next one is queued.
                    earlier[0].loss.block_until_ready()
            step += count
            if session.is_compiled:
                # If dispatch is not asynchronous, this block has ended too.
                times.reach(step if watch.loss.is_ready() else step - count)
            now = time.monotonic()
            self._pace.learn(now - before)
            before = now
            is_due = session.is_due(step)
            ready = earlier
            earlier = (watch, step)
            if is_due or step == session.steps or not session.is_compiled or self._to_profile:
                self._to_profile = 0 if session.has_stepped else session.params.profile_steps
                ready = earlier
            elif ready is None or now - looked < _LOOK_SECONDS:
                continue
            with clock.measure(COMPUTE):
                is_first = not session.is_compiled
                loss = self._look(*ready, first)
            bar.update(session.examples_before(ready[1]) - session.examples_before(shown), f"loss {loss:.4f}")
            shown = ready[1]
            looked = now
            if is_first:  # This step compiled the program, so its time does not count.
                times.start(step)
            elif ready[1] == step:
                times.reach(step)
            if is_due:
                self._leave(carry)
                session.save_checkpoint(step)
                times.start(step)
        self._leave(carry)
        metrics = {name: float(value) for name, value in self._model.get_metrics_result().items()}
        return {**metrics, "loss": float(watch.loss)}  # A custom `train_step` may keep no mean of the loss.

    def _begin(self, step: int) -> tuple[Any, Watch]:
        state = tuple([variable.value for variable in kind] for kind in state_of(self._model))
        place, finite, loss = (put(value, self._program.mesh) for value in (np.int32(step), np.int32(0), np.float32(0)))
        return (state, place), Watch(finite, loss)

    def _look(self, watch: Watch, step: int, first: int) -> float:
        """Wait until a step has ended, and return the mean loss of the epoch so far.

        Args:
            watch: The program's result after the step: number of steps with a finite loss, and mean loss.
            step: Number of finished steps of the epoch.
            first: Number of steps that were already finished when this session began the epoch.

        Raises:
            InputError: If the loss of a step since `first` is not finite.
        """
        finite_steps, loss = int(watch.finite_steps), float(watch.loss)
        self._session.end_first_step()
        if finite_steps < step - first:
            raise self._session.divergence(first + finite_steps + 1, "the loss")
        return loss

    def _leave(self, carry: Any) -> None:
        """Assign the program's state to the model's variables. The values are valid until the next step begins."""
        for variables, values in zip(state_of(self._model), carry[0], strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)


def make_loop(session: Session, records_dir: Path, validation_bytes: int) -> DeviceLoop | FitLoop:
    """Return the training loop for a session's backend and data.

    Args:
        session: The session.
        records_dir: Folder of the records.
        validation_bytes: Size of the validation split in bytes if it is held in RAM, otherwise 0. A split in RAM is
            also copied to device memory if the training split stays there.

    Raises:
        InputError: If the parameter `residency` is `device`, and the training split cannot stay in device memory.
    """
    params = session.params
    manifest = session.manifest
    device = session.device
    share = session.group.hosts.share
    own_bytes = records.decoded_bytes(manifest, TRAIN) // share.count
    stays = is_resident(params.residency, device.backend, own_bytes, params.in_memory_mib)
    batch = manifest.interface.batch_shapes(session.batch_size)
    program = Program(session.model, batch, session.num_examples, params, stays, device.accelerator, device.mesh)
    if stays:
        if device.accelerator == "cpu" or session.group.agree(fits(program, validation_bytes)):
            examples = records.load_split(records_dir, manifest, TRAIN, with_margin=True, share=share)
            return DeviceLoop(session, program, ResidentFeed(program, examples, params.seed, share))
        if params.residency == DEVICE:
            raise InputError(
                "The training split and the model do not fit together in the device's memory, which residency=device "
                "requires. Set training.residency to auto, or lower training.batch_size_per_replica."
            )
        progress.say(
            STEP,
            "the data and the model do not fit together in the device's memory, so the data are streamed from the host",
        )
        program = dataclasses.replace(program, is_resident=False)
    reader = open_training_split(
        records_dir,
        manifest,
        session.batch_size,
        params.seed,
        params.in_memory_mib,
        params.shuffle_buffer,
        share,
    )
    if device.backend != "jax":
        return FitLoop(session, reader)
    return DeviceLoop(session, program, StreamedFeed(program, reader))
