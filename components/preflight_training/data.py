"""What preflight must know of the data: its shapes, and how fast this machine feeds it."""

import contextlib
import dataclasses
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base import typed_values
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.fingerprint import code_of
from tpu_components.core.examples import feeding, records
from tpu_components.core.examples.artifacts import LABEL_FEATURE, TRAIN, VALIDATION, Manifest
from tpu_components.core.examples.interface import Interface
from tpu_components.preflight_training import compile_cache

_MEASURED_SECONDS = 0.5
_MEASURED_PASSES = 3  # At least, for the spread; fewer where they take long.
_MOST_SECONDS = 10.0
_MEASURED_BYTES = 256 << 20  # Decoded; enough for a steady rate, little enough to hold beside a compilation.


# What else is to be found of an interface and the numbers of examples that train and validate, once these are known.
Meanwhile = Callable[[Interface, int, int], None]


def nothing(interface: Interface, num_examples: int, num_validation: int) -> None:
    """Find nothing else."""


@dataclasses.dataclass(frozen=True)
class HostRate:
    """The examples per second that this machine delivers, measured on the data set's own TFRecords.

    Attributes:
        read_per_second: Read from the files, parsed and decoded.
        feed_per_second: Examples per second once `train_model` runs: from memory where the split is held there, else
            from the files again.
        in_memory: Whether it is held there.
        cpus: That this process may use.
        low_per_second: Slowest pass that `feed_per_second` was measured on; 0 where there was one pass.
        high_per_second: Fastest pass.
    """

    read_per_second: float
    feed_per_second: float
    in_memory: bool
    cpus: int
    low_per_second: float = 0.0
    high_per_second: float = 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest pass, as multiples of the rate."""
        if not self.low_per_second:
            return 1.0, 1.0
        return self.low_per_second / self.feed_per_second, self.high_per_second / self.feed_per_second

    @property
    def feed_per_cpu(self) -> float:
        """Examples per second that each CPU feeds."""
        return self.feed_per_second / self.cpus


@dataclasses.dataclass(frozen=True)
class DataFacts:
    """A data set, seen from a training step.

    Attributes:
        interface: Input and output of a model of it.
        num_examples: Number of examples in the training split.
        decoded_bytes: Bytes of the training split in memory.
        host: Rate at which this machine feeds it.
        num_validation: Number of examples in the validation split; 0 where there is none.
        assumed: Difference from the data at hand, in words; empty where the data are as they are.
    """

    interface: Interface
    num_examples: int
    decoded_bytes: int
    host: HostRate
    num_validation: int = 0
    assumed: str = ""


def load_facts(
    records_dir: Path,
    batch_size: int,
    in_memory_mib: int,
    shuffle_buffer: int,
    cache_dir: Path,
    meanwhile: Meanwhile = nothing,
) -> DataFacts:
    """Return the facts of a folder of records; the rate is measured once per data set, reader and machine.

    Args:
        records_dir: Folder that create_tfrecords wrote.
        batch_size: Number of examples in a batch.
        in_memory_mib: Parameter of train_model.
        shuffle_buffer: Parameter of train_model.
        cache_dir: Folder that keeps what was measured.
        meanwhile: See `measure`.

    Raises:
        InputError: If the folder holds no data set, or no training split.
    """
    manifest = Manifest.load(records_dir, verify=False)
    manifest.split(TRAIN)
    key = facts_key(manifest.fingerprint, batch_size, in_memory_mib, shuffle_buffer)
    counts = {name: split.num_examples for name, split in manifest.splits.items()}
    return remembered(
        cache_dir,
        key,
        lambda: measure(records_dir, manifest, counts, batch_size, in_memory_mib, shuffle_buffer, meanwhile),
    )


def facts_key(*parts: Any) -> str:
    """Return a key for facts about some data on this machine."""
    here = (platform.node(), _cpus(), code_of([__name__]).digest)
    return digest_of([*parts, *here])


def _cpus() -> int:
    """Return the CPUs that this process may use: in a container its share of the machine's.

    https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files
    """
    with contextlib.suppress(OSError, ValueError):  # No such file outside a container, and `max` is no number.
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text().split())
        return max(1, round(quota / period))
    return os.cpu_count() or 1


def remembered(cache_dir: Path, key: str, find: Callable[[], DataFacts]) -> DataFacts:
    """Return the facts kept under a key; where there are none, those that `find` gives, from now on."""
    path = cache_dir / f"data-{key}.json"
    if (known := compile_cache.recall(path, lambda raw: typed_values.read(raw, DataFacts))) is not None:
        return known
    facts = find()
    compile_cache.keep(path, dataclasses.asdict(facts))
    return facts


def measure(
    records_dir: Path,
    manifest: Manifest,
    split_examples: Mapping[str, int],
    batch_size: int,
    in_memory_mib: int,
    shuffle_buffer: int,
    meanwhile: Meanwhile = nothing,
) -> DataFacts:
    """Read the training split's first shards from their files, then feed them as training does.

    Args:
        records_dir: Folder that create_tfrecords wrote: the data set, or a sample of it.
        manifest: Its manifest.
        split_examples: Number of examples in each whole split.
        batch_size: Number of examples in a batch.
        in_memory_mib: Parameter of train_model.
        shuffle_buffer: Parameter of train_model.
        meanwhile: Called while TensorFlow is imported, and over before anything is measured: a compilation takes every
            core.
    """
    num_examples, num_validation = split_examples[TRAIN], split_examples.get(VALIDATION, 0)
    # Takes seconds, which are no part of any rate.
    importing = threading.Thread(target=records.tensorflow)
    importing.start()
    try:
        meanwhile(manifest.interface, num_examples, num_validation)
    finally:
        importing.join()
    decoded_bytes = num_examples * records.input_bytes(manifest.input, with_margin=True)
    in_memory = feeding.is_held_in_memory(decoded_bytes, in_memory_mib)
    part = _first_shards(manifest)
    batch_size = min(batch_size, part.split(TRAIN).num_examples)
    read, _, _ = _rate(
        lambda: (
            len(batch[LABEL_FEATURE]) for batch in records.read_batches(records_dir, part, TRAIN, with_margin=True)
        )
    )
    # A part of a split that is held in memory fits there too; of one that is not, none is to be held.
    reader = feeding.open_training_split(
        records_dir, part, batch_size, 0, in_memory_mib if in_memory else 0, shuffle_buffer
    )
    feed, low, high = _rate(lambda: (len(labels) for _, labels, _ in reader.batches(0, 0)))
    return DataFacts(
        interface=manifest.interface,
        num_examples=num_examples,
        decoded_bytes=decoded_bytes,
        host=HostRate(read, feed, in_memory, _cpus(), low, high),
        num_validation=num_validation,
    )


def _first_shards(manifest: Manifest) -> Manifest:
    """Return the manifest of the first shards of the training split alone."""
    split = manifest.split(TRAIN)
    share = min(1.0, _MEASURED_BYTES / max(records.decoded_bytes(manifest, TRAIN), 1))
    count = max(1, int(len(split.shards) * share))
    shards = split.shards[:count]
    part = dataclasses.replace(split, num_examples=sum(shard.num_examples for shard in shards), shards=shards)
    return dataclasses.replace(manifest, splits={TRAIN: part})


def _rate(open_pass: Callable[[], Iterable[int]]) -> tuple[float, float, float]:
    """Measure examples per second over whole passes: of all, of the slowest and of the fastest.

    The first pass, unless it is a long one, does not count.
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
