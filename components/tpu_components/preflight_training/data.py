"""Facts about a data set that preflight needs: its sizes, and the rate at which this machine reads it."""

import dataclasses
import functools
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.cpus import available_cpus, cpu_times
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.fingerprint import code_of
from tpu_components.core.base.frameworks import tf
from tpu_components.core.examples import feeding, records
from tpu_components.core.examples.artifacts import LABEL_FEATURE, TRAIN, VALIDATION, Manifest
from tpu_components.core.examples.decoding import MOST_PER_SECOND, MOST_RESIZED_PER_SECOND
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.preflight_training.compiling import compile_cache

_MEASURED_SECONDS = 0.5
_MEASURED_PASSES = 3  # At least, for the spread; fewer if they take long.
_MOST_SECONDS = 10.0
_MUCH_LOAD = 0.25  # Load by other processes from which a rate is measured again the next time.
MEASURED_BYTES = 256 << 20  # Decoded; enough for a steady rate, little enough to hold beside a compilation.
FEED_BATCH = 1024  # Batch size of the measurement; the rate hardly depends on it.


@dataclasses.dataclass(frozen=True)
class HostRate:
    """Rates at which this machine reads examples, measured on the TFRecords of the data set.

    Attributes:
        read_per_second: Examples per second that are read from the files, parsed and decoded.
        feed_per_second: Examples per second that are read as in training: from memory if `in_memory`, otherwise from
            files.
        in_memory: Whether the training split is held in memory.
        cpus: Number of CPUs that this process may use.
        low_per_second: `feed_per_second` of the slowest pass, or 0 if there was one pass.
        high_per_second: `feed_per_second` of the fastest pass.
        load: Share of this machine's CPU time that other processes used during the measurement, or 0 if unknown.
    """

    read_per_second: float
    feed_per_second: float
    in_memory: bool
    cpus: int
    low_per_second: float = 0.0
    high_per_second: float = 0.0
    load: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used a quarter or more of this machine, so that the measured rate may be too low."""
        return self.load >= _MUCH_LOAD

    @property
    def spread(self) -> tuple[float, float]:
        """Rates of the slowest and of the fastest pass, as multiples of the mean rate."""
        if not self.low_per_second:
            return 1.0, 1.0
        return self.low_per_second / self.feed_per_second, self.high_per_second / self.feed_per_second

    @property
    def feed_per_cpu(self) -> float:
        """Examples per second that each CPU feeds."""
        return self.feed_per_second / self.cpus


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """Sizes of a data set, and the rates at which this machine reads it.

    Preflight estimates a training run from these facts.

    Attributes:
        interface: Input and output of a model for the data set.
        num_examples: Number of examples in the training split.
        decoded_bytes: Bytes of the training split in memory.
        host: Rates at which this machine reads the examples. None if no estimate needs these rates, because the
            training split is in the devices' memory or no time is estimated.
        num_validation: Number of examples in the validation split, or 0 if there is none.
        assumed: Assumptions about data that are not available yet, in words. Empty if the data are available.
    """

    interface: Interface
    num_examples: int
    decoded_bytes: int
    host: HostRate | None = None
    num_validation: int = 0
    assumed: str = ""

    @classmethod
    def from_manifest(cls, manifest: Manifest, split_examples: Mapping[str, int]) -> "DataFacts":
        """Return the sizes of a data set. The attribute `host` of the result is None.

        Args:
            manifest: Manifest of the data set, or of a sample of it.
            split_examples: Number of examples in each split of the whole data set.

        Raises:
            InputError: If there is no training split.
        """
        manifest.split(TRAIN)
        num_examples = split_examples[TRAIN]
        decoded_bytes = num_examples * records.input_bytes(manifest.input, with_margin=True)
        return cls(manifest.interface, num_examples, decoded_bytes, num_validation=split_examples.get(VALIDATION, 0))

    def estimate_feed(self, cpus: int) -> float:
        """Estimate the examples per second that a host with `cpus` CPUs feeds.

        The result is 0 if this machine's rate is not known.

        The rate is assumed to grow with the number of CPUs, up to the highest rate at which one process decodes images.
        If the number of CPUs is unknown (`cpus=0`), the host is assumed to be as fast as this machine.
        """
        if self.host is None:
            return 0.0
        if not cpus:
            return self.host.feed_per_second
        rate = self.host.feed_per_second * cpus / self.host.cpus
        inputs = self.interface.input
        if not isinstance(inputs, ImageInput) or inputs.encoding == records.RAW or self.host.in_memory:
            return rate
        return min(rate, MOST_RESIZED_PER_SECOND if inputs.encoding == records.ENCODED else MOST_PER_SECOND)


# Returns the facts about a data set with the host's rate.
MeasureHost = Callable[[DataFacts], DataFacts]


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Measures how fast training on this machine reads a data set.

    The result is cached for each data set, machine and combination of `in_memory_mib` and `shuffle_buffer`.

    Attributes:
        in_memory_mib: `TrainParams.in_memory_mib`.
        shuffle_buffer: `TrainParams.shuffle_buffer`.
        cache_dir: Folder in which rates are cached.
    """

    in_memory_mib: int
    shuffle_buffer: int
    cache_dir: Path

    def of_records(self, records_dir: Path, manifest: Manifest, facts: DataFacts) -> DataFacts:
        """Return a copy of `facts` with the rate at which this machine reads the records in `records_dir`."""
        measure = functools.partial(self.measure, records_dir, manifest, facts.decoded_bytes)
        return dataclasses.replace(facts, host=self.recall([manifest.fingerprint, facts.decoded_bytes], measure))

    def recall(self, key: Sequence[Any], measure: Callable[[], HostRate]) -> HostRate:
        """Return the cached rate. If there is no cached rate, call `measure` and cache its result.

        If other processes disturbed the cached measurement, `measure` is called again.

        Args:
            key: Values on which the rate depends, besides the attributes of this object, the machine and this module's
                code, which are always part of the key.
            measure: Function that measures the rate.
        """
        reader = (self.in_memory_mib, self.shuffle_buffer)
        machine = (platform.node(), available_cpus())
        digest = digest_of([*key, *reader, *machine, code_of([__name__]).digest])
        path = self.cache_dir / f"host-{digest}.json"
        rate: HostRate | None = compile_cache.recall(path, HostRate)
        if rate is None or rate.is_disturbed:
            rate = measure()
            compile_cache.keep(path, dataclasses.asdict(rate))
        return rate

    def measure(self, records_dir: Path, manifest: Manifest, decoded_bytes: int) -> HostRate:
        """Measure how many examples per second are read from the first shards of the training split.

        The examples are read twice: from files, and in the same way as in training, which may hold them in memory.

        Args:
            records_dir: Folder that create_tfrecords wrote: the data set, or a sample of it.
            manifest: Manifest of the folder.
            decoded_bytes: Bytes of the whole training split in memory.
        """
        _ = tf.data  # Imports TensorFlow, which takes seconds and must not be part of a rate.
        in_memory = feeding.is_held_in_memory(decoded_bytes, self.in_memory_mib)
        part = _first_shards(manifest)
        batch_size = min(FEED_BATCH, part.split(TRAIN).num_examples)
        before = cpu_times()
        read, _, _ = measure_rate(
            lambda: (
                len(batch[LABEL_FEATURE]) for batch in records.read_batches(records_dir, part, TRAIN, with_margin=True)
            )
        )
        # The part is held in memory if the whole split is.
        held_mib = self.in_memory_mib if in_memory else 0
        reader = feeding.open_training_split(records_dir, part, batch_size, 0, held_mib, self.shuffle_buffer)
        feed, low, high = measure_rate(lambda: (len(labels) for _, labels, _ in reader.batches(0, 0)))
        return HostRate(read, feed, in_memory, available_cpus(), low, high, cpu_times().others_since(before))


def _first_shards(manifest: Manifest) -> Manifest:
    split = manifest.split(TRAIN)
    share = min(1.0, MEASURED_BYTES / max(records.decoded_bytes(manifest, TRAIN), 1))
    count = max(1, int(len(split.shards) * share))
    shards = split.shards[:count]
    part = dataclasses.replace(split, num_examples=sum(shard.num_examples for shard in shards), shards=shards)
    return dataclasses.replace(manifest, splits={TRAIN: part})


def measure_rate(open_pass: Callable[[], Iterable[int]]) -> tuple[float, float, float]:
    """Measure how many examples per second are read, in several passes that take at least half a second in total.

    Args:
        open_pass: Function that starts a pass. It returns an iterable of the number of examples in each batch.

    Returns:
        Examples per second of all passes together, of the slowest, and of the fastest pass. The first pass counts only
        if it takes more than half a second.
    """
    passes: list[tuple[int, float]] = []
    is_first, spent = True, 0.0
    while spent < _MEASURED_SECONDS or (len(passes) < _MEASURED_PASSES and spent < _MOST_SECONDS):
        start = time.perf_counter()
        count = sum(open_pass())
        took = time.perf_counter() - start
        if not is_first or took > _MEASURED_SECONDS:
            passes.append((count, took))
            spent += took
        is_first = False
    rates = [count / seconds for count, seconds in passes]
    return sum(count for count, _ in passes) / spent, min(rates), max(rates)
