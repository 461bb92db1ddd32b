"""The machine that a training job asks Vertex for, checked against a catalogue of what can be asked for.

`machine_catalogue.json` is that catalogue: every TPU slice that Vertex trains on, what its chips can do, where it is
offered, Compute Engine's list price and the factor by which Vertex AI's is higher, each value with its source and date.
`Slice.price` is the one place that makes a price of these. Nothing here talks to the cloud.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.typed_values import NotNegative, Positive, Range, check_fields, read_by_hand

CATALOGUE_FILE = Path(__file__).parent / "machine_catalogue.json"
CHEAPEST_MACHINE = "v5e-1"
VERTEX_FIELDS = ("machine_type", "accelerator_type", "accelerator_count", "tpu_topology")
BOOT_DISK_TYPES = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
MIN_BOOT_DISK_GB, MAX_BOOT_DISK_GB = 100, 64_000
_OWN_FIELDS = ("name", *VERTEX_FIELDS, "reservation", "fallbacks")  # What no fallback takes from its machine.
_RESERVATION = re.compile(r"projects/[^/]+/zones/(?P<region>[a-z]+-[a-z]+\d+)-[a-z]/reservations/[^/]+")
VERTEX, KUBEFLOW = "vertex", "kubeflow"
# Who bills the machine of a training, by its target: a cluster on GKE pays for Compute Engine's machines.
BILLED_BY = {VERTEX: "Vertex AI's price", KUBEFLOW: "Compute Engine's list price"}


def billed_by(target: str) -> str:
    """Say whose price a target pays; without a target, as in older files, it is Compute Engine's."""
    return BILLED_BY.get(target, BILLED_BY[KUBEFLOW])


@dataclasses.dataclass(frozen=True)
class Source:
    """The origin of a value, and the day it was true; a year where the day is not known."""

    text: str
    date: str


@dataclasses.dataclass(frozen=True)
class Generation:
    """One generation of TPU.

    Attributes:
        name: `v2`, `v3`, `v5e`, `v6e` or `7x`.
        device_kind: Name of the device, as JAX reports it.
        devices_per_chip: JAX devices; v2, v3 and 7x show each half of a chip as one.
        hbm_usable_bytes: Bytes of a JAX device's memory that a compiled program may use.
        hbm_bytes_per_second: Memory bandwidth of a chip.
        peak_bf16_flops: Floating-point operations per second of a chip.
        clock_hz: Turns the TPU compiler's cycles into seconds; fitted to the peak, not published.
        mxu_size: Rows and columns of a matrix unit.
        supports_tensorflow: Whether Vertex runs TensorFlow on it.
        vertex_factor: Vertex AI's price, as a multiple of Compute Engine's.
        boot_disk_types: Types of boot disk that its hosts have.
        regions: That train on one host.
        pod_regions: That train on several hosts.
        serving_only_regions: That have it, but not for training.
        ici_bytes_per_second: Bandwidth of one link between chips, one way; None where no source says.
        sources: Origins of these values, by attribute.
    """

    name: str
    device_kind: str
    devices_per_chip: int
    hbm_usable_bytes: int
    hbm_bytes_per_second: float
    peak_bf16_flops: float
    clock_hz: float
    mxu_size: int
    supports_tensorflow: bool
    vertex_factor: float
    boot_disk_types: tuple[str, ...]
    regions: tuple[str, ...]
    pod_regions: tuple[str, ...]
    serving_only_regions: tuple[str, ...] = ()
    ici_bytes_per_second: float | None = None
    sources: Mapping[str, Source] = dataclasses.field(default_factory=dict, hash=False, repr=False)


@dataclasses.dataclass(frozen=True)
class Host:
    """One virtual machine of a slice."""

    vcpus: int
    ram_bytes: int
    source: str
    date: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Price:
    """The price of a whole slice in one region.

    Attributes:
        usd_per_hour: Price of an hour, in US dollars.
        region: Region in which it is paid.
        is_spot: Whether it is that of a spot machine.
        kind: Whose price it is, and for what.
        source: Place where it is published.
        date: When it was.
        target: Platform that trains: `vertex` or `kubeflow`.
        factor: The price, as a multiple of Compute Engine's.
    """

    usd_per_hour: float
    region: str
    is_spot: bool
    kind: str
    source: str
    date: str
    target: str = KUBEFLOW
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class Slice:
    """One row of the catalogue: a set of chips that one can ask Vertex for.

    Attributes:
        name: Short name. v2 and v3 count cores (`v2-8`), the others chips (`v5e-8`). Where a slice of two hosts has as
            many chips as a single host, it carries the suffix of its machine type (`v5e-8-4t`).
        generation: Generation of its chips.
        machine_type: Vertex's name of a host.
        chips: Their number.
        devices: JAX devices, which is to say replicas.
        hosts: Virtual machines. Vertex derives them: its `replica_count` is 1 for all of these.
        libtpu_topology: Its name for the TPU compiler.
        source: Origin of the row.
        date: When it was true.
        accelerator_type: `TPU_V2` or `TPU_V3`; empty where Vertex takes a topology.
        accelerator_count: Cores, where Vertex takes an accelerator type; else 0.
        tpu_topology: Chips along each axis (`2x4`); empty where Vertex takes an accelerator type.
        chips_per_host_bounds: One host's part of the topology, for the TPU compiler; None for its default.
        host: CPUs and memory of each host; None where these are not published.
        prices: Compute Engine's list prices of the whole slice.
    """

    name: str
    generation: Generation
    machine_type: str
    chips: int
    devices: int
    hosts: int
    libtpu_topology: str
    source: str
    date: str
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""
    chips_per_host_bounds: tuple[int, int, int] | None = None
    host: Host | None = None
    prices: tuple[Price, ...] = ()

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that train on it."""
        return self.generation.pod_regions if self.hosts > 1 else self.generation.regions

    @property
    def vertex_fields(self) -> dict[str, Any]:
        """The fields of Vertex's machine spec; those that it does not take are empty or 0."""
        return {key: getattr(self, key) for key in VERTEX_FIELDS}

    def price(self, region: str = "", spot: bool = False, target: str = VERTEX) -> Price | None:
        """Return the price of the whole slice in `region`, or in the cheapest region that trains on it.

        None where no trustworthy price is known: none is made from another slice's or another region's.

        Args:
            region: Region in which it is paid; empty is the cheapest.
            spot: Whether as a spot machine.
            target: Platform that trains: Kubeflow pays Compute Engine's list price, Vertex AI takes more.

        Example:
            >>> machine = load_catalogue().find("v5e-8")
            >>> machine.price("us-west1").usd_per_hour, machine.price("us-west1", target="kubeflow").usd_per_hour
            (11.04, 9.6)
        """
        known = [price for price in self.prices if price.is_spot == spot and region in ("", price.region)]
        cheapest = min(known, key=lambda price: price.usd_per_hour, default=None)
        return self._by_vertex(cheapest) if cheapest and target == VERTEX else cheapest

    def _by_vertex(self, price: Price) -> Price:
        """Return Vertex AI's price for Compute Engine's."""
        factor, origin = self.generation.vertex_factor, self.generation.sources["vertex_factor"]
        is_attested = not price.is_spot and not origin.text.startswith("assumed")
        doubt = "" if is_attested else ", an assumed factor"
        return dataclasses.replace(
            price,
            usd_per_hour=round(price.usd_per_hour * factor, 4),
            kind=f"{BILLED_BY[VERTEX]}, {_how(price.is_spot)}: {factor:g} × Compute Engine's{doubt}",
            source=f"{price.source}; {factor:g} ×: {origin.text}",
            target=VERTEX,
            factor=factor,
        )

    def __str__(self) -> str:
        shape = self.tpu_topology or f"{self.accelerator_count} {self.accelerator_type}"
        return f"{self.name} ({self.machine_type}, {shape})"


@dataclasses.dataclass(frozen=True)
class UnofferedGeneration:
    """A generation that exists, but that Vertex does not train on."""

    name: str
    machine_type_prefix: str
    cores_per_chip: int
    source: str
    date: str


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """Every slice that Vertex trains on: by generation, the oldest first, then by size, then by number of hosts."""

    generations: tuple[Generation, ...]
    slices: tuple[Slice, ...]
    not_offered: tuple[UnofferedGeneration, ...]

    def find(self, name: str) -> Slice:
        """Return the slice with a short name, Cloud TPU's name (`v5litepod-8`) or the TPU compiler's (`v5e:4x4`).

        Raises:
            InputError: If there is none, or the name could mean two; names the nearest.

        Example:
            >>> load_catalogue().find("v5e-8").machine_type
            'ct5lp-hightpu-8t'
        """
        plain = name.strip().lower().replace("v5litepod-", "v5e-")
        matches = [
            entry for entry in self.slices if plain in (entry.name, entry.libtpu_topology, _topology_name(entry))
        ]
        if not matches:
            raise InputError(_explain_unknown(self, name, plain))
        if len(matches) > 1:
            raise InputError(f"{name!r} can mean {' or '.join(map(str, matches))}. Write which.")
        return matches[0]


@functools.cache
def load_catalogue() -> Catalogue:
    """Return the catalogue that comes with this package; read once."""
    raw = json.loads(CATALOGUE_FILE.read_text(encoding="utf-8"))
    sources = {key: Source(**source) for key, source in raw["sources"].items()}

    def cited(row: Mapping[str, Any]) -> dict[str, Any]:
        source = sources[row["source"]]
        return {**row, "source": source.text, "date": source.date}

    generations = {row["name"]: _read_generation(row, sources) for row in raw["generations"]}
    hosts = {row.pop("machine_type"): Host(**row) for row in map(cited, raw["hosts"])}
    prices = [cited(row) for row in raw["prices"]]

    def read_slice(row: dict[str, Any]) -> Slice:
        bounds = row.pop("chips_per_host_bounds", None)
        entry = Slice(
            **row | {"generation": generations[row["generation"]], "host": hosts.get(row["machine_type"])},
            chips_per_host_bounds=tuple(bounds) if bounds else None,
        )
        return dataclasses.replace(entry, prices=tuple(_read_prices(prices, entry)))

    return Catalogue(
        generations=tuple(generations.values()),
        slices=tuple(read_slice(cited(row)) for row in raw["slices"]),
        not_offered=tuple(UnofferedGeneration(**cited(row)) for row in raw["not_offered"]),
    )


def _read_generation(row: Mapping[str, Any], sources: Mapping[str, Source]) -> Generation:
    values: dict[str, Any] = {"name": row["name"]}
    cited = {}
    for key, cell in row.items():
        if key != "name":
            values[key] = tuple(cell["value"]) if isinstance(cell["value"], list) else cell["value"]
            cited[key] = sources[cell["source"]]
    return Generation(**values, sources=cited)


def _read_prices(rows: Iterable[Mapping[str, Any]], entry: Slice) -> Iterator[Price]:
    """Yield the prices of a slice: its own, or its chips' where its generation is sold by the chip."""
    for row in rows:
        if row.get("slice") == entry.name:
            usd_per_hour = row["usd_per_hour"]
        elif row.get("generation") == entry.generation.name:
            usd_per_hour = round(row["usd_per_chip_hour"] * entry.chips, 4)
        else:
            continue
        spot = row.get("spot", False)
        kind = f"{BILLED_BY[KUBEFLOW]}, {_how(spot)}"
        yield Price(usd_per_hour, row["region"], spot, kind, row["source"], row["date"])


def _how(spot: bool) -> str:
    return "spot" if spot else "on demand"


@dataclasses.dataclass(frozen=True)
class PaidMachine:
    """A TPU slice, and where and how it is paid for.

    Attributes:
        machine: Short name of a TPU slice, as `tpu-pipelines machines` lists them.
        region: Region of the price; empty is the cheapest region that trains on the machine.
        spot: Whether the price is that of a spot machine.
        target: Platform that trains, whose price it is: `vertex` or `kubeflow`.
        timeout_seconds: Time after which the training is stopped; 0 leaves it to preflight's estimate.
        attempts: Number of times that the training may start; each has `timeout_seconds`.

    Raises:
        InputError: If Vertex would refuse it; names what is nearest.
    """

    machine: str = CHEAPEST_MACHINE
    region: str = ""
    spot: bool = False
    target: Annotated[str, tuple(BILLED_BY)] = VERTEX
    timeout_seconds: NotNegative = 0
    attempts: Positive = 1

    def __post_init__(self) -> None:
        check_fields(self)
        self.require_backend("auto")

    def require_backend(self, backend: str) -> None:
        """Check that the machine runs a backend.

        Raises:
            InputError: If it does not; names those that do.
        """
        MachineSpec(self.machine, region=self.region, spot=self.spot).require_backend(backend)

    @functools.cached_property
    def slice(self) -> Slice:
        """The catalogue's row."""
        return load_catalogue().find(self.machine)

    @property
    def price(self) -> Price | None:
        """The target's price; None where no trustworthy one is known."""
        return self.slice.price(self.region, self.spot, self.target)


@dataclasses.dataclass(frozen=True)
class MachineSpec:
    """A machine that a training job asks for: a slice of the catalogue, and how it is had.

    Attributes:
        name: Short name, as `tpu-pipelines machines` lists them; may stand for the whole section. Vertex's own fields,
            the next four, say the same, and follow from it where they are left out.
        machine_type: `cloud-tpu` for v2 and v3, `ct5lp-hightpu-…` for v5e, `ct6e-standard-…`, `tpu7x-standard-4t`.
        accelerator_type: `TPU_V2` or `TPU_V3` with `cloud-tpu`; else empty.
        accelerator_count: Cores, with `cloud-tpu`; else 0.
        tpu_topology: Chips along each axis, with all but `cloud-tpu`.
        region: Region to train in; empty leaves it to the settings.
        boot_disk_type: `pd-ssd` or `pd-standard` up to v5e, `hyperdisk-balanced` from v6e on; empty is Vertex's own
            choice for the machine.
        boot_disk_size_gb: From 100, which is Vertex's own, to 64,000.
        spot: Cheaper, and taken away at any time; only on one host.
        reservation: `projects/PROJECT/zones/ZONE/reservations/NAME`; empty is none.
        timeout_seconds: The job is stopped after this time; 0 leaves it to preflight's estimate, or to a day.
        restart_job_on_worker_restart: Restart the whole job when one of its workers is restarted.
        disable_retries: Do not start the job again after an error of the platform.
        max_wait_seconds: Seconds to wait for the machine before the next fallback is tried; 0 is without end.
        fallbacks: Machines to try, in order, where this one cannot be had; they have none of their own.

    Raises:
        InputError: If Vertex would refuse it; names what is nearest.
    """

    name: str = ""
    machine_type: str = ""
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""
    region: str = ""
    boot_disk_type: Annotated[str, ("", *BOOT_DISK_TYPES)] = ""
    boot_disk_size_gb: Annotated[int, Range(MIN_BOOT_DISK_GB, MAX_BOOT_DISK_GB)] = MIN_BOOT_DISK_GB
    spot: bool = False
    reservation: str = ""
    timeout_seconds: NotNegative = 0
    restart_job_on_worker_restart: bool = False
    disable_retries: bool = False
    max_wait_seconds: NotNegative = 24 * 3600
    fallbacks: tuple["MachineSpec", ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        machine = self._find_slice()
        for key, value in {"name": machine.name, **machine.vertex_fields}.items():
            object.__setattr__(self, key, value)
        if self.region and self.region not in machine.regions:
            raise InputError(_explain_region(machine, self.region))
        if self.spot and machine.hosts > 1:
            siblings = [entry for entry in load_catalogue().slices if entry.generation == machine.generation]
            single = [entry for entry in siblings if entry.hosts == 1]
            raise InputError(
                f"Spot machines are single hosts, and {machine.name} has {machine.hosts}. Received: spot=True. "
                f"Set spot: false; nearest single host: {_names(_nearest(single, machine.chips))}."
            )
        self._check_reservation()
        able = machine.generation.boot_disk_types
        if self.boot_disk_type and self.boot_disk_type not in able:
            raise InputError(
                f"TPU {machine.generation.name} has no disk of the type {self.boot_disk_type}: expected boot_disk_type "
                f"to be {' or '.join(able)}, or left out. Received: {self.boot_disk_type!r} with {machine.name}."
            )
        if self.disable_retries and self.restart_job_on_worker_restart:
            raise InputError(
                "disable_retries would override restart_job_on_worker_restart. Received: both true. Set one of them."
            )
        if any(fallback.fallbacks for fallback in self.fallbacks):
            raise InputError("A fallback has no fallbacks of its own. List them all, in order, under the machine.")

    def _check_reservation(self) -> None:
        if not self.reservation:
            return
        match = _RESERVATION.fullmatch(self.reservation)
        if not match:
            raise InputError(
                f"reservation must be projects/PROJECT/zones/ZONE/reservations/NAME. Received: {self.reservation!r}."
            )
        if self.spot:
            raise InputError(f"A spot machine uses no reservation. Received: spot=True, {self.reservation!r}. Set one.")
        if self.region and match["region"] != self.region:
            raise InputError(
                f"The reservation must be in the region {self.region!r}. Received: one in {match['region']!r}, "
                f"{self.reservation!r}."
            )

    def _find_slice(self) -> Slice:
        said = {key: getattr(self, key) for key in VERTEX_FIELDS}
        if self.name:
            named = load_catalogue().find(self.name)
            for key, expected in named.vertex_fields.items():
                if said[key] and said[key] != expected:
                    raise InputError(
                        f"The name {self.name!r} means {key}={expected!r}. Received: {key}={said[key]!r}. Leave "
                        "out one of them."
                    )
            return named
        if not self.machine_type:
            raise InputError("Expected a name or a machine_type. Received: neither. Add name: v5e-8, or such.")
        for entry in load_catalogue().slices:
            if entry.vertex_fields == said:
                return entry
        raise InputError(_explain_mismatch(said))

    @functools.cached_property
    def slice(self) -> Slice:
        """The catalogue's row."""
        return load_catalogue().find(self.name)

    @property
    def paid(self) -> PaidMachine:
        """The slice, and where and how it is paid for on Vertex AI; `resources.paid_on` knows of other targets."""
        return PaidMachine(self.name, self.region, self.spot, timeout_seconds=self.timeout_seconds)

    def require_backend(self, backend: str) -> None:
        """Check that the machine runs `tensorflow`, `jax` or `auto`, which chooses one that it runs.

        Raises:
            InputError: If it does not; names the nearest that do.
        """
        if backend == "tensorflow" and not self.slice.generation.supports_tensorflow:
            able = [entry for entry in load_catalogue().slices if entry.generation.supports_tensorflow]
            raise InputError(
                f"TPU {self.slice.generation.name} does not run TensorFlow. Received: {self.name}, "
                f"backend='tensorflow'. Use the backend jax, or one of "
                f"{_names(_nearest_of_each_generation(able, self.slice.chips))}."
            )

    def require_one_host(self, reason: str) -> None:
        """Check that this machine and all its fallbacks have one host.

        Args:
            reason: Why several will not do, as the sentence begins that refuses them.

        Raises:
            InputError: If one has several.
        """
        for machine in self.candidates:
            entry = machine.slice
            if entry.hosts > 1:
                same = [other for other in load_catalogue().slices if other.generation == entry.generation]
                raise InputError(
                    f"{reason}, and {entry.name} has {entry.hosts} hosts. Use "
                    f"{_names(_nearest([other for other in same if other.hosts == 1], entry.chips))}, or another of "
                    f"one host; `tpu-pipelines preflight` takes {entry.name} all the same."
                )

    @property
    def candidates(self) -> tuple["MachineSpec", ...]:
        """This machine, then its fallbacks, in the order in which they are tried; each without fallbacks."""
        return dataclasses.replace(self, fallbacks=()), *self.fallbacks

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, which `parse_machine` turns into this spec again."""
        return dataclasses.asdict(self)


def parse_machine(value: str | Mapping[str, Any], backend: str = "auto", where: str = "machine") -> MachineSpec:
    """Read a machine as it stands in a configuration.

    Args:
        value: A short name, or a mapping: `name` or Vertex's own fields, and any other field of `MachineSpec`. Its
            `fallbacks` are a list of either; they take from it what they do not set, but for the reservation, which
            holds one type of machine.
        backend: Backend that will train on it: `tensorflow`, `jax` or `auto`, which chooses one that the machine runs.
        where: Name of the field in an error.

    Raises:
        InputError: If Vertex would refuse it, or it does not run the backend; names what is nearest.

    Example:
        >>> parse_machine({"name": "v5e-8", "spot": True, "fallbacks": ["v6e-8"]}).fallbacks[0].machine_type
        'ct6e-standard-8t'
    """
    spec: MachineSpec = read_by_hand(_with_fallbacks(value, where), MachineSpec, where)
    for i, machine in enumerate(spec.candidates):
        try:
            machine.require_backend(backend)
        except InputError as error:
            place = f"{where}.fallbacks[{i - 1}]" if i else where
            raise InputError(f"Cannot use {place}: {error}") from error
    return spec


def _with_fallbacks(value: Any, where: str) -> dict[str, Any]:
    """Return a machine as a mapping whose fallbacks are mappings too, with what they take from it."""
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise InputError(f"Cannot use {where}: expected a short name or a mapping of fields. Received: {value!r}.")
    fallbacks = value.get("fallbacks", ())
    if not isinstance(fallbacks, list | tuple):
        raise InputError(f"Cannot use {where}.fallbacks: expected a list of machines. Received: {fallbacks!r}.")
    shared = {key: item for key, item in value.items() if key not in _OWN_FIELDS}
    whole = [_with_fallbacks(fallback, f"{where}.fallbacks[{i}]") for i, fallback in enumerate(fallbacks)]
    return {**value, "fallbacks": [shared | fallback for fallback in whole]}


def _topology_name(entry: Slice) -> str:
    return f"{entry.generation.name}:{entry.libtpu_topology.partition(':')[2]}"


def _names(slices: Iterable[Slice]) -> str:
    return ", ".join(entry.name for entry in slices)


def _distance(entry: Slice, chips: float) -> float:
    return abs(math.log(entry.chips / max(chips, 1)))


def _nearest(slices: Iterable[Slice], chips: float) -> list[Slice]:
    """Return the largest slice that has no more chips, and the smallest that has no fewer."""
    by_size = sorted({entry.chips: entry for entry in reversed(list(slices))}.values(), key=lambda entry: entry.chips)
    below = [entry for entry in by_size if entry.chips <= chips][-1:]
    return below + [entry for entry in by_size if entry.chips >= chips and entry not in below][:1]


def _nearest_of_each_generation(slices: Iterable[Slice], chips: float) -> list[Slice]:
    nearest: dict[str, Slice] = {}
    for entry in slices:
        best = nearest.get(entry.generation.name, entry)
        nearest[entry.generation.name] = min(best, entry, key=lambda candidate: _distance(candidate, chips))
    return list(nearest.values())


def _explain_unknown(catalogue: Catalogue, name: str, plain: str) -> str:
    """Say why no slice has this name, and which ones are nearest."""
    head, _, size = plain.partition("-")
    family, count = head.partition(":")[0], int(size) if size.isdecimal() else 0
    siblings = [entry for entry in catalogue.slices if entry.generation.name == family.removeprefix("tpu")]
    if family == "tpu7x" and count:
        # Google's own tools disagree: for some it is chips, for others the two cores of each.
        nearest = _names(entry for entry in siblings if entry.chips in (count, count / 2)) or _names(siblings)
        return f"{name!r} may count chips or cores. Expected 7x- and the number of chips: {nearest}."
    if siblings and count:
        unit, per_chip = ("cores", 2) if siblings[0].accelerator_type else ("chips", 1)
        nearest = _names(_nearest(siblings, count / per_chip))
        return f"There is no {family} slice of {count} {unit}. Received: {name!r}. Nearest: {nearest}."
    if siblings:
        return f"There is no slice {name!r}. Expected one of {_names(siblings)}."
    for generation in catalogue.not_offered:
        if family in (generation.name, generation.machine_type_prefix):
            nearest = _names(_nearest_of_each_generation(catalogue.slices, count / generation.cores_per_chip))
            return f"Vertex does not offer {generation.name} for training. Received: {name!r}. Nearest: {nearest}."
    if same_machine := [str(entry) for entry in catalogue.slices if entry.machine_type == plain]:
        return f"{name!r} is a machine type, not a slice. Expected one of {', '.join(same_machine)}."
    return (
        f"There is no machine {name!r}. Expected a short name such as v5e-8, v3-32 or 7x-4."
        f"{did_you_mean(plain, [entry.name for entry in catalogue.slices])} `tpu-pipelines machines` lists all."
    )


def _explain_mismatch(wanted: Mapping[str, Any]) -> str:
    """Say why no slice has these of Vertex's fields, and which ones are nearest."""
    catalogue = load_catalogue()
    machine_type = wanted["machine_type"]
    candidates = [entry for entry in catalogue.slices if entry.machine_type == machine_type]
    if not candidates:
        known = dict.fromkeys(entry.machine_type for entry in catalogue.slices)
        if machine_type.startswith(tuple(entry.machine_type_prefix for entry in catalogue.not_offered)):
            return _explain_unknown(catalogue, machine_type, machine_type)
        return (
            f"Vertex has no TPU machine type {machine_type!r}. Expected one of {', '.join(known)}."
            f"{did_you_mean(machine_type, known)}"
        )
    taken, foreign = ["tpu_topology"], ["accelerator_type", "accelerator_count"]
    if candidates[0].accelerator_type:
        taken, foreign = foreign, taken
    if wanted["tpu_topology"]:
        chips = math.prod(map(int, re.findall(r"\d+", wanted["tpu_topology"])))
    else:
        chips = wanted["accelerator_count"] // len(taken)
    generations = {entry.generation.name for entry in candidates}

    def difference(entry: Slice) -> tuple[int, float]:
        return sum(entry.vertex_fields[key] != wanted[key] for key in VERTEX_FIELDS), _distance(entry, chips)

    siblings = [entry for entry in catalogue.slices if entry.generation.name in generations]
    nearest = ", ".join(map(str, sorted(siblings, key=difference)[:2]))
    if received := ", ".join(f"{key}={wanted[key]!r}" for key in foreign if wanted[key]):
        return (
            f"{machine_type} takes {' and '.join(taken)}, not {' and '.join(foreign)}. Received: {received}. "
            f"Leave that out. Nearest: {nearest}."
        )
    for key in taken:
        expected = dict.fromkeys(str(entry.vertex_fields[key]) for entry in candidates)
        candidates = [entry for entry in candidates if entry.vertex_fields[key] == wanted[key]]
        if not candidates:
            break
    return f"{machine_type} has no {key}={wanted[key]!r}. Expected one of {', '.join(expected)}. Nearest: {nearest}."


def _explain_region(machine: Slice, region: str) -> str:
    """Say why a slice cannot train in a region, where it can, and what can train there."""
    generation = machine.generation
    there = [entry for entry in load_catalogue().slices if region in entry.regions]
    if region in generation.serving_only_regions:
        reason = f"{region} serves on {generation.name}, but does not train on it."
    elif machine.hosts > 1 and region in generation.regions:
        reason = f"{region} trains on {generation.name} of one host only, and {machine.name} has {machine.hosts}."
    else:
        reason = f"{region} does not train on {generation.name}."
    message = f"{reason} Received: {machine.name}, region={region!r}. Expected one of {', '.join(machine.regions)}."
    if there:
        return f"{message} Nearest in {region}: {_names(_nearest_of_each_generation(there, machine.chips))}."
    return message + did_you_mean(region, machine.regions)
