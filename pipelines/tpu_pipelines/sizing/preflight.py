"""Runs preflight for a configuration outside of a pipeline run, without records and without a TPU."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.fingerprint import code_of
from tpu_components.core.base.progress import say
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE, TRAIN, Manifest
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.examples.records import ENCODED
from tpu_components.core.files import storage
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import CHEAPEST_MACHINE, MachineSpec, PaidMachine, parse_machine
from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.listing import Listing
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.create_tfrecords.sample import sample_of, written
from tpu_components.preflight_training import data
from tpu_components.preflight_training.compiling import compile_cache
from tpu_components.preflight_training.data import DataFacts, HostRate, Measurement
from tpu_components.preflight_training.examining import Examination
from tpu_components.preflight_training.findings import MachineReport, PreflightReport
from tpu_components.preflight_training.receipts.store import ReceiptStore
from tpu_components.preflight_training.report import write_report
from tpu_pipelines.config.configuration import Config, preflight_params
from tpu_pipelines.platforms.findings import CannotAskError
from tpu_pipelines.platforms.machines import place_training
from tpu_pipelines.platforms.platform import Platform, default_platform

_SHAPE_EXAMPLES = 64  # Examples that are written to find out their shape.
_SAMPLE_EXAMPLES = 4096  # Examples that are written to measure how fast this machine reads them.
_SMALL_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class PlannedData:
    """Expected size of data that are not available yet.

    Attributes:
        num_examples: Number of examples in all splits.
        image_bytes: Average size of an image file, in bytes. 0 means the size of the available images.

    Raises:
        InputError: If `num_examples` is not positive, or `image_bytes` is negative.
    """

    num_examples: int
    image_bytes: int = 0

    def __post_init__(self) -> None:
        if self.num_examples < 1 or self.image_bytes < 0:
            raise InputError(
                f"The number of examples must be positive, and the size of an image must not be negative. Received: "
                f"{self.num_examples} examples, {self.image_bytes} bytes per image."
            )

    def split(self, at_hand: Mapping[str, int]) -> dict[str, int]:
        """Divide `num_examples` among the splits in the proportions of the available examples.

        Args:
            at_hand: Number of available examples by split.
        """
        whole = sum(at_hand.values())
        return {name: max(count * self.num_examples // whole, min(count, 1)) for name, count in at_hand.items()}

    def assumed_of(self, facts: DataFacts, listing: Listing) -> DataFacts:
        """Return the facts about the available data, but with the rate at which the host reads the expected data."""
        inputs = facts.interface.input
        host = facts.host
        here = len(listing.keys)
        words = f"{self.num_examples:,} examples are assumed"
        if host:
            held = "in memory" if host.in_memory else "streamed from files"
            words += f", {held}; the host's rate was measured on the {here:,} available examples"
        if self.image_bytes and isinstance(inputs, ImageInput):
            if host and inputs.encoding == ENCODED and not host.in_memory:
                # The time of decoding depends on the pixels, which are assumed to be proportional to the bytes.
                each = listing.num_bytes / here
                slower = self.image_bytes / each
                rates = ("read_per_second", "feed_per_second", "low_per_second", "high_per_second")
                host = dataclasses.replace(host, **{name: getattr(host, name) / slower for name in rates})
                words += (
                    f" and divided by {slower:.3g}, for {self.image_bytes:,} bytes per image instead of {each:,.0f}"
                )
            else:
                words += "; images in the records have the size data.image_size, so --image-bytes has no effect"
        return dataclasses.replace(facts, host=host, assumed=words)


def preflight(
    config: Config,
    machines: Sequence[str],
    directory: Path,
    like: Footprint | None = None,
    platforms: Sequence[Platform] = (),
    planned: PlannedData | None = None,
    region: str = "",
    is_timed: bool = True,
    store: ReceiptStore | None = None,
) -> PreflightReport:
    """Compile a configuration's training step for machines, and estimate its memory, time and price.

    The report is written to a folder and returned.

    Args:
        config: Configuration of the training run.
        machines: Short names of machines. If empty, the configuration's machine and fallbacks are used or, if it has
            none, the cheapest machine.
        directory: Folder for `preflight.json` and `preflight.html`. An existing report is replaced.
        like: Footprint of another training run. If it is set, preflight assumes the numbers of examples of that run,
            and uses the available data only as a sample.
        platforms: Platforms whose prices are used for each machine. If empty, the default platform is used.
        planned: Expected size of the training data, of which the available data are a sample.
        region: Region from the settings; see `platforms.machines.place_training`.
        is_timed: Whether times and prices are estimated in addition to the memory.
        store: Receipts (measurements of the project's training runs), from which preflight derives the intervals of its
            estimates. None means intervals that are derived from published step times.

    Raises:
        InputError: If the configuration, its data or its model cannot be used, or the TPU compiler is not installed.
    """
    storage.require_output(directory, PREFLIGHT_FILE)
    platforms = platforms or (default_platform(),)
    named = [parse_machine(name, config.training.backend) for name in machines]
    specs = [with_settings_of(candidate, config.machine) for candidate in named]
    if not specs:
        specs = list(config.machine.candidates) if config.machine else [parse_machine(CHEAPEST_MACHINE)]
    candidates = [place_training(config, spec, platform, region).paid for spec in specs for platform in platforms]
    examination = Examination(preflight_params(config, candidates[0]), candidates, is_timed=is_timed, store=store)
    listing = list_examples(config.data)
    facts = describe_data(config, listing, examination.cache_dir, planned)
    if like:
        facts = dataclasses.replace(
            facts,
            num_examples=like.num_examples,
            num_validation=like.num_validation,
            decoded_bytes=facts.decoded_bytes * like.num_examples // facts.num_examples,
        )
    measurement = examination.measurement
    measure_host = functools.partial(measure_sample, config, listing, measurement=measurement, planned=planned)
    report = examination.report(facts, measure_host)
    report = dataclasses.replace(report, run=config.name)
    with storage.staged_directory(directory) as staged:
        write_report(report, staged)
    return report


def judge_machines(config: Config, listing: Listing, machines: Sequence[PaidMachine]) -> tuple[MachineReport, ...]:
    """Return preflight's report for each machine. Compilations are reused from the cache.

    Raises:
        CannotAskError: If preflight is switched off.
        InputError: If the compiler is not installed, or the configuration, its data or its model cannot be used.
    """
    if config.preflight is None:
        raise CannotAskError("preflight is switched off")
    store = ReceiptStore.of_workspace()
    examination = Examination(preflight_params(config, machines[0]), machines, store=store)
    facts = describe_data(config, listing, examination.cache_dir)
    measure_host = functools.partial(measure_sample, config, listing, measurement=examination.measurement)
    return examination.report(facts, measure_host).machines


def with_settings_of(machine: MachineSpec, configured: MachineSpec | None) -> MachineSpec:
    """Return a machine with the time limit, region and spot setting of the configured machine.

    The region and the spot setting are used only if they are available for the machine.
    """
    if configured is None:
        return machine
    region = configured.region if configured.region in machine.slice.regions else ""
    spot = configured.spot and machine.slice.hosts == 1  # Slices of several hosts cannot be spot machines.
    return dataclasses.replace(machine, region=region, spot=spot, timeout_seconds=configured.timeout_seconds)


def describe_data(config: Config, listing: Listing, cache_dir: Path, planned: PlannedData | None = None) -> DataFacts:
    """Return preflight's facts about the data, except the rate at which this machine reads the data.

    To find out the shape of the examples, a few of them are written in the same way as the whole data set. The result
    is cached until the size or modification time of a source file changes.

    Args:
        config: Configuration of the training run.
        listing: Examples of the data set. They are divided into splits only if there is no cached result.
        cache_dir: Folder in which the result is cached.
        planned: Expected size of the training data, of which the available data are a sample.

    Raises:
        InputError: If the source cannot be used.
    """
    counted = planned.num_examples if planned else None
    path = cache_dir / f"data-{digest_of([*_key_of(config, listing), counted, code_of([data.__name__]).digest])}.json"
    facts: DataFacts | None = compile_cache.recall(path, DataFacts)
    if facts is None:
        say("preflight_training", f"reading up to {_SHAPE_EXAMPLES} examples to find out their shape")
        plan = plan_dataset(config.data, listing)
        with _written_sample(plan, _SHAPE_EXAMPLES) as (_, manifest):
            facts = DataFacts.from_manifest(
                manifest, planned.split(plan.split_examples) if planned else plan.split_examples
            )
        compile_cache.keep(path, dataclasses.asdict(facts))
    return planned.assumed_of(facts, listing) if planned else facts


def measure_sample(
    config: Config, listing: Listing, facts: DataFacts, measurement: Measurement, planned: PlannedData | None = None
) -> DataFacts:
    """Measure how fast this machine reads a sample of the data. Return the facts about the data with this rate.

    The sample is written in the same way as the whole data set.

    Args:
        config: Configuration of the training run.
        listing: Examples of the data set.
        facts: Facts about the data, without the host's rate.
        measurement: Object that measures the rate and caches the result.
        planned: Expected size of the training data, of which the available data are a sample.

    Raises:
        InputError: If the source cannot be used.
    """

    def measure() -> HostRate:
        plan = plan_dataset(config.data, listing)
        say("preflight_training", f"measuring how fast this machine reads, on up to {_SAMPLE_EXAMPLES:,} examples")
        with _written_sample(plan, _SAMPLE_EXAMPLES) as (records_dir, manifest):
            return measurement.measure(records_dir, manifest, facts.decoded_bytes)

    key = [*_key_of(config, listing), facts.decoded_bytes]
    measured = dataclasses.replace(facts, host=measurement.recall(key, measure))
    return planned.assumed_of(measured, listing) if planned else measured


def _key_of(config: Config, listing: Listing) -> list[Any]:
    return [listing.stat_digest(), dataclasses.asdict(config.data)]


@contextlib.contextmanager
def _written_sample(plan: DatasetPlan, most: int) -> Iterator[tuple[Path, Manifest]]:
    """Write some training examples to a temporary folder. Yield the folder and its manifest."""
    examples = sample_of(plan, most)
    # Starting several workers takes longer than writing a small sample.
    each = plan.listing.num_bytes // len(plan.listing.keys)
    params = dataclasses.replace(plan.params, num_workers=1) if len(examples) * each < _SMALL_BYTES else plan.params
    with written(dataclasses.replace(plan, params=params, order={TRAIN: examples})) as sample:
        yield sample
