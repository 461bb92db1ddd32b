"""Preflight of a configuration outside of a run, without written records and without a TPU."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.progress import say
from tpu_components.core.examples.artifacts import PREFLIGHT_FILE, TRAIN
from tpu_components.core.examples.interface import ImageInput
from tpu_components.core.examples.records import ENCODED
from tpu_components.core.files import storage
from tpu_components.core.machines.footprint import Footprint
from tpu_components.core.machines.machine_spec import CHEAPEST_MACHINE, VERTEX, MachineSpec, PaidMachine, parse_machine
from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.listing import Listing
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_components.create_tfrecords.sample import sample_of, written
from tpu_components.preflight_training.data import DataFacts, Measurement
from tpu_components.preflight_training.examining import Examination
from tpu_components.preflight_training.findings import MachineReport, PreflightReport
from tpu_components.preflight_training.report import write_report
from tpu_pipelines.config.configuration import Config, preflight_params
from tpu_pipelines.config.resources import paid_on
from tpu_pipelines.doctor.findings import CannotAskError

_SAMPLE_EXAMPLES = 4096
_SMALL_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class PlannedData:
    """Expected size of data that are not available yet.

    Attributes:
        num_examples: Number of examples in all splits.
        image_bytes: Average size of an image file, in bytes; 0 means that of the available images.

    Raises:
        InputError: If `num_examples` is not positive, or `image_bytes` is negative.
    """

    num_examples: int
    image_bytes: int = 0

    def __post_init__(self) -> None:
        if self.num_examples < 1 or self.image_bytes < 0:
            raise InputError(
                f"Expected a positive number of examples, and of bytes. Received: --examples {self.num_examples}, "
                f"--image-bytes {self.image_bytes}."
            )

    def split(self, at_hand: Mapping[str, int]) -> dict[str, int]:
        """Divide the assumed number of examples among the splits in the proportions of `at_hand`, the data at hand."""
        whole = sum(at_hand.values())
        return {name: max(count * self.num_examples // whole, min(count, 1)) for name, count in at_hand.items()}

    def assumed_of(self, facts: DataFacts, listing: Listing) -> DataFacts:
        """Return the facts that were measured on a sample, adjusted to the expected data."""
        here = len(listing.keys)
        held = "in memory" if facts.host.in_memory else "streamed from files"
        words = f"{self.num_examples:,} examples are assumed, {held}; the host's rate is that of the {here:,} at hand"
        inputs, host = facts.interface.input, facts.host
        each = listing.num_bytes / here
        if self.image_bytes and isinstance(inputs, ImageInput):
            if inputs.encoding == ENCODED and not host.in_memory:
                # The time of decoding depends on the pixels, which are assumed to be proportional to the bytes.
                slower = self.image_bytes / each
                rates = ("read_per_second", "feed_per_second", "low_per_second", "high_per_second")
                host = dataclasses.replace(host, **{name: getattr(host, name) / slower for name in rates})
                words += f", divided by {slower:.3g} for {self.image_bytes:,} bytes an image and not {each:,.0f}"
            else:
                words += (
                    f"; images have the size that data.image_size gives them, whatever {self.image_bytes:,} bytes hold"
                )
        return dataclasses.replace(facts, host=host, assumed=words)


def preflight(
    config: Config,
    machines: Sequence[str],
    directory: Path,
    like: Footprint | None = None,
    targets: Sequence[str] = (VERTEX,),
    planned: PlannedData | None = None,
    region: str = "",
) -> PreflightReport:
    """Compile a configuration's training step for machines; writes the report to a folder and returns it.

    Args:
        config: Configuration of the training.
        machines: Short names of machines; if empty, the configuration's machine and fallbacks, or else the cheapest.
        directory: Folder for `preflight.json` and `preflight.html`; an existing report is replaced.
        like: Footprint of another training, which sets the numbers of examples; the available data are a sample.
        targets: Platforms whose prices are used for each machine: `vertex`, `kubeflow`.
        planned: Expected size of the training data, of which the available data are a sample.
        region: Region from the settings; see `paid_on`.

    Raises:
        InputError: If the configuration, its data or its model cannot be used, or the TPU compiler is not installed.
    """
    storage.require_output(directory, PREFLIGHT_FILE)
    named = [parse_machine(name, config.training.backend) for name in machines]
    specs = [with_settings_of(candidate, config.machine) for candidate in named]
    if not specs:
        specs = list(config.machine.candidates) if config.machine else [parse_machine(CHEAPEST_MACHINE)]
    candidates = [paid_on(config, spec, target, region) for spec in specs for target in targets]
    examination = Examination(preflight_params(config, candidates[0]), candidates)
    measurement = examination.measurement
    if like:  # Compile for as many examples as the other training had.
        counts = like.num_examples, like.num_validation
        compile_like = lambda interface, *_: examination.compile(interface, *counts)  # noqa: E731
        measurement = dataclasses.replace(measurement, meanwhile=compile_like)
    facts = describe_data(config, list_examples(config.data), measurement, planned)
    if like:
        facts = dataclasses.replace(
            facts,
            num_examples=like.num_examples,
            num_validation=like.num_validation,
            decoded_bytes=facts.decoded_bytes * like.num_examples // facts.num_examples,
        )
    report = examination.report(facts)
    report = dataclasses.replace(report, run=config.name)
    with storage.staged_directory(directory) as staged:
        write_report(report, staged)
    return report


def judge_machines(config: Config, listing: Listing, machines: Sequence[PaidMachine]) -> tuple[MachineReport, ...]:
    """Return preflight's reports for machines; earlier compilations come from the cache.

    Raises:
        CannotAskError: If preflight is switched off.
        InputError: If the compiler is not installed, or the configuration, its data or its model cannot be used.
    """
    if config.preflight is None:
        raise CannotAskError("preflight is switched off")
    examination = Examination(preflight_params(config, machines[0]), machines)
    return examination.report(describe_data(config, listing, examination.measurement)).machines


def with_settings_of(machine: MachineSpec, configured: MachineSpec | None) -> MachineSpec:
    """Return a machine with the configured time limit, and with the configured region and spot price if available."""
    if configured is None:
        return machine
    region = configured.region if configured.region in machine.slice.regions else ""
    spot = configured.spot and machine.slice.hosts == 1  # Slices of several hosts are no spot machines.
    return dataclasses.replace(machine, region=region, spot=spot, timeout_seconds=configured.timeout_seconds)


def describe_data(
    config: Config,
    listing: Listing,
    measurement: Measurement,
    planned: PlannedData | None = None,
) -> DataFacts:
    """Return the facts about the data that preflight needs, measured on a sample.

    The sample is written and read like the whole data set. The result is cached until the size or time of a source file
    changes.

    Args:
        config: Configuration of the training.
        listing: Examples of the data set; divided into splits only if there is no cached result.
        measurement: Measures the sample, and keeps the result.
        planned: Expected size of the training data, of which the available data are a sample.

    Raises:
        InputError: If the source cannot be used.
    """

    def measure_sample() -> DataFacts:
        plan = plan_dataset(config.data, listing)
        examples = sample_of(plan, _SAMPLE_EXAMPLES)
        count = len(examples)
        say("preflight_training", f"measuring how fast this machine reads, on {count:,} examples")
        counts = planned.split(plan.split_examples) if planned else plan.split_examples
        # Starting several workers takes longer than writing a small sample.
        each = plan.listing.num_bytes // len(plan.listing.keys)
        params = dataclasses.replace(config.data, num_workers=1) if count * each < _SMALL_BYTES else config.data
        with written(dataclasses.replace(plan, params=params, order={TRAIN: examples})) as (records_dir, manifest):
            return measurement.measure(records_dir, manifest, counts)

    more = (planned.num_examples,) if planned else ()
    facts = measurement.recall([listing.stat_digest(), dataclasses.asdict(config.data), *more], measure_sample)
    return planned.assumed_of(facts, listing) if planned else facts
