"""The machine of a training job, checked against a catalogue of TPU slices and machines with GPUs.

`machine_catalogue.json` lists every TPU slice for training on Vertex AI, TPU slices of GKE, and the GPU machines of
both platforms. It contains their performance, regions and quotas, Compute Engine's list prices, and the ratios of
Vertex AI's prices to these list prices. Each value has a source and a date. `Slice.price` computes all prices. This
module makes no network calls.
"""

import dataclasses
import functools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.typed_values import (
    NotNegative,
    Pattern,
    Positive,
    Range,
    check_fields,
    check_together,
    read_by_hand,
)

CATALOGUE_FILE = Path(__file__).parent / "machine_catalogue.json"
CHEAPEST_MACHINE = "v5e-1"
TPU, GPU = "tpu", "gpu"
VERTEX_FIELDS = ("machine_type", "accelerator_type", "accelerator_count", "tpu_topology")
BOOT_DISK_TYPES = ("pd-ssd", "pd-standard", "hyperdisk-balanced")
MIN_BOOT_DISK_GB, MAX_BOOT_DISK_GB = 100, 64_000
_OWN_FIELDS = ("name", *VERTEX_FIELDS, "reservation", "fallbacks")  # Fields that a fallback does not inherit.
_RESERVATION = re.compile(r"projects/[^/]+/zones/(?P<region>[a-z]+-[a-z]+\d+)-[a-z]/reservations/[^/]+")
_RESOURCE_ID = Pattern(r"([a-z][a-z0-9-]{0,62})?", "a persistent resource's id, such as my-resource")
_NFS_MOUNT = Pattern(r"[^:=\s]+:/[^=\s]*=[\w.-]+", "SERVER:/PATH=NAME, such as 10.0.0.2:/share=data")
VERTEX_ONLY = ("enable_web_access", "persistent_resource_id", "nfs_mounts")
VERTEX, KUBEFLOW = "vertex", "kubeflow"
# Platform, by target. A GKE cluster is billed at Compute Engine's prices.
_PLATFORMS = {VERTEX: "Vertex AI", KUBEFLOW: "GKE"}
_OFFERS = {
    VERTEX: "https://cloud.google.com/vertex-ai/docs/training/configure-compute",
    KUBEFLOW: "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus",
}
BILLED_BY = {VERTEX: "Vertex AI's price", KUBEFLOW: "Compute Engine's list price"}


def billed_by(target: str) -> str:
    """Return the name of a platform's price list, for example `Compute Engine's list price`.

    Args:
        target: Platform, `vertex` or `kubeflow`. Empty in files that earlier releases wrote. The prices in these files
            are always Compute Engine's list prices.
    """
    return BILLED_BY.get(target, BILLED_BY[KUBEFLOW])


@dataclasses.dataclass(frozen=True)
class Citation:
    """The source of a value. `date` is the date of the source, or only its year if the day is unknown."""

    text: str
    date: str


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generation of TPUs or a type of GPU. Attributes for time estimates are not set for GPUs.

    Attributes:
        name: `v2`, `v3`, `v4`, `v5e`, `v5p`, `v6e` or `7x`; `t4`, `l4`, `a100`, `a100-80gb` or `h100`.
        hbm_usable_bytes: Memory of a JAX device that a compiled program may use, in bytes. For a GPU, all of its
            memory.
        supports_tensorflow: Whether Vertex AI supports TensorFlow on this generation.
        boot_disk_types: Types of boot disk that the hosts can have.
        regions: Regions for training on one host.
        accelerator: `tpu` or `gpu`.
        pod_regions: Regions for training on several hosts.
        device_kind: Name of the device, as JAX reports it.
        devices_per_chip: JAX devices per chip: two (one per core) for v2, v3 and 7x, otherwise one.
        cores_per_device: TensorCores of a JAX device: two for v4 and v5p, otherwise one.
        hbm_bytes_per_second: Memory bandwidth of a chip, in bytes per second.
        peak_bf16_flops: Peak bfloat16 operations per second of a chip.
        clock_hz: Clock rate in Hz, to convert the TPU compiler's cycles to seconds. It is not published, but derived
            from `peak_bf16_flops`.
        cmem_bytes: Size of the on-chip memory that the cores share (CMEM), in bytes. 0 if the chip has none.
        mxu_size: Rows and columns of a matrix unit.
        targets: Platforms that offer this generation for training: `vertex`, `kubeflow`.
        chip_config: Configuration of a chip for the TPU compiler. Empty means the compiler's default.
        vertex_factor: Ratio of Vertex AI's price to Compute Engine's, or None if Vertex AI does not offer this
            generation.
        serving_only_regions: Regions for serving only.
        ici_bytes_per_second: Bandwidth of one link between chips in one direction, in bytes per second. None if
            unknown.
        dcn_bytes_per_second: Bandwidth of the data-centre network, which connects slices: one chip's share, in one
            direction, in bytes per second. None if unknown.
        gke_accelerator: Name of this generation in GKE's node labels, for example `tpu-v5-lite-podslice`. Empty if GKE
            does not offer this generation.
        gke_pod_accelerator: Name in GKE's node labels for slices of several hosts. Empty if the same as
            `gke_accelerator`.
        vertex_quota: Name of this generation in the names of Vertex AI's quotas, for example `V3TPUs`. Empty if Vertex
            AI does not offer this generation.
        vertex_pod_quota: The same for slices of several hosts, for example `V3PodTPUs`. Empty if the same as
            `vertex_quota`.
        compute_quota: Metric of Compute Engine's quota, such as `NVIDIA_L4_GPUS`. Empty if `doctor` does not check it.
        sources: Sources of these values, by attribute.
    """

    name: str
    hbm_usable_bytes: int
    supports_tensorflow: bool
    boot_disk_types: tuple[str, ...]
    regions: tuple[str, ...]
    accelerator: str = TPU
    pod_regions: tuple[str, ...] = ()
    device_kind: str = ""
    devices_per_chip: int = 1
    cores_per_device: int = 1
    hbm_bytes_per_second: float = 0.0
    peak_bf16_flops: float = 0.0
    clock_hz: float = 1.0
    cmem_bytes: int = 0
    mxu_size: int = 0
    targets: tuple[str, ...] = tuple(BILLED_BY)
    chip_config: str = ""
    vertex_factor: float | None = None
    serving_only_regions: tuple[str, ...] = ()
    ici_bytes_per_second: float | None = None
    dcn_bytes_per_second: float | None = None
    gke_accelerator: str = ""
    gke_pod_accelerator: str = ""
    vertex_quota: str = ""
    vertex_pod_quota: str = ""
    compute_quota: str = ""
    sources: Mapping[str, Citation] = dataclasses.field(default_factory=dict, hash=False, repr=False)

    @property
    def device_peak_flops(self) -> float:
        """Peak bfloat16 operations per second of a JAX device."""
        return self.peak_bf16_flops / self.devices_per_chip

    @property
    def device_bytes_per_second(self) -> float:
        """Memory bandwidth of a JAX device, in bytes per second."""
        return self.hbm_bytes_per_second / self.devices_per_chip


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
        usd_per_hour: Price per hour, in US dollars.
        region: Region of the price.
        is_spot: Whether it is the price of a spot machine.
        kind: Price list, and whether the machine is spot, in words: for example `Vertex AI's price, on demand`.
        source: Where the price was published.
        date: Date of the publication; only a year if the day is unknown.
        target: Platform that trains: `vertex` or `kubeflow`.
        factor: Ratio of the price to Compute Engine's list price.
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
    """A TPU slice or a machine with GPUs: one entry of the catalogue.

    Attributes:
        name: Short name. The number counts cores for v2 to v4 and v5p (`v2-8`), and chips (`v5e-8`) or GPUs (`l4-1`)
            for others. If a slice of two hosts has as many chips as a slice of one host, its name ends with the suffix
            of its machine type (`v5e-8-4t`).
        generation: Generation of the TPU chips, or type of the GPUs.
        machine_type: Vertex AI's machine type of a host.
        chips: Number of chips.
        devices: Number of JAX devices, which is the number of replicas.
        hosts: Number of virtual machines. Vertex AI derives this number from the other fields, so `replica_count` of a
            job is always 1.
        source: Source of these values.
        date: Date of the source.
        libtpu_topology: Name of the slice for the TPU compiler. Empty for GPUs.
        accelerator_type: `TPU_V2`, `TPU_V3` or, for example, `NVIDIA_L4`. Empty if `tpu_topology` is set.
        accelerator_count: Number of TPU cores or GPUs, or 0 if `accelerator_type` is empty.
        tpu_topology: Chips along each axis (`2x4`). Empty if `accelerator_type` is set.
        chips_per_host_bounds: Chips of one host along each axis, for the TPU compiler. None means the compiler's
            default.
        host: CPUs and memory of each host, or None if not published.
        prices: Compute Engine's list prices of the whole slice.
        targets: Platforms that train on the slice. The default is the platforms of its generation.
    """

    name: str
    generation: Generation
    machine_type: str
    chips: int
    devices: int
    hosts: int
    source: str
    date: str
    libtpu_topology: str = ""
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""
    chips_per_host_bounds: tuple[int, int, int] | None = None
    host: Host | None = None
    prices: tuple[Price, ...] = ()
    targets: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the slice. The first is the short name.

        For a TPU slice, the other names are the TPU compiler's name, and the generation with the topology (`v5e:4x4`).
        """
        topology = self.libtpu_topology
        return (self.name, *((topology, f"{self.generation.name}:{topology.partition(':')[2]}") if topology else ()))

    @property
    def is_gpu(self) -> bool:
        """Whether the slice is a machine with GPUs."""
        return self.generation.accelerator == GPU

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions where this slice can train."""
        return self.generation.pod_regions if self.hosts > 1 else self.generation.regions

    @property
    def host_cpus(self) -> int:
        """Number of CPUs of each host, or 0 if not published."""
        return self.host.vcpus if self.host else 0

    @property
    def vertex_fields(self) -> dict[str, Any]:
        """Fields of Vertex AI's machine spec. Unused fields are empty or 0."""
        return {key: getattr(self, key) for key in VERTEX_FIELDS}

    def price(self, region: str = "", spot: bool = False, target: str = VERTEX) -> Price | None:
        """Return the price of the whole slice in a region, or None if no price is published.

        Prices are not derived from other slices or regions.

        Args:
            region: Region of the price. Empty means the cheapest region for training.
            spot: Whether to return the price of a spot machine.
            target: Platform that is paid: `kubeflow` at Compute Engine's list prices, or `vertex` at higher prices.

        Example:
            >>> machine = load_catalogue().find("v5e-8")
            >>> machine.price("us-west1").usd_per_hour, machine.price("us-west1", target="kubeflow").usd_per_hour
            (11.04, 9.6)
        """
        if target not in self.targets:
            return None
        known = [price for price in self.prices if price.is_spot == spot and region in ("", price.region)]
        cheapest = min(known, key=lambda price: price.usd_per_hour, default=None)
        return self._by_vertex(cheapest) if cheapest and target == VERTEX else cheapest

    def _by_vertex(self, price: Price) -> Price:
        """Convert a price of Compute Engine to the price of Vertex AI."""
        factor = self.generation.vertex_factor or 1.0
        origin = self.generation.sources["vertex_factor"]
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

    def require_backend(self, backend: str) -> None:
        """Check that this slice supports a backend: `tensorflow`, `jax`, or `auto`, which chooses a supported one.

        Raises:
            InputError: If the slice does not support the backend. The message lists the nearest slices that support it.
        """
        if backend == "tensorflow" and not self.generation.supports_tensorflow:
            able = [entry for entry in load_catalogue().slices if entry.generation.supports_tensorflow]
            raise InputError(
                f"TPU {self.generation.name} does not run TensorFlow. Received: {self.name}, "
                f"backend='tensorflow'. Use the backend jax, or one of these machines: "
                f"{_nearest(able, self.chips)}."
            )

    def require_target(self, target: str) -> None:
        """Check that a platform offers this slice for training.

        Raises:
            InputError: If the platform does not offer the slice. The message lists the platform's nearest slices.
        """
        if target not in self.targets:
            there = [entry for entry in load_catalogue().slices if target in entry.targets and not entry.is_gpu]
            raise InputError(
                f"{_PLATFORMS[target]} does not offer {self.name} ({self.machine_type}; see {_OFFERS[target]}). Use "
                f"the platform {self.targets[0]}, or one of the nearest machines of {_PLATFORMS[target]}: "
                f"{_nearest(there, self.chips)}."
            )

    def __str__(self) -> str:
        shape = self.tpu_topology or f"{self.accelerator_count} {self.accelerator_type}"
        return f"{self.name} ({self.machine_type}, {shape})"


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """All slices, sorted by generation (TPUs first, oldest first), size and number of hosts."""

    generations: tuple[Generation, ...]
    slices: tuple[Slice, ...]

    def find(self, name: str) -> Slice:
        """Return the slice with this name.

        Args:
            name: Short name (`v5e-8`), Cloud TPU's name (`v5litepod-8`), or generation with topology (`v5e:4x4`).

        Raises:
            InputError: If no slice has the name, or several slices have it. The message lists the nearest slices.

        Example:
            >>> load_catalogue().find("v5e-8").machine_type
            'ct5lp-hightpu-8t'
        """
        plain = name.strip().lower().replace("v5litepod-", "v5e-")
        matches = [entry for entry in self.slices if plain in entry.names]
        if not matches:
            raise InputError(_explain_unknown(self, name, plain))
        if len(matches) > 1:
            raise InputError(
                f"{name!r} is ambiguous: {' or '.join(map(str, matches))}. Use the short name of one of them."
            )
        return matches[0]


@functools.cache
def load_catalogue() -> Catalogue:
    """Return the catalogue of this package. The file is read only once."""
    raw = json.loads(CATALOGUE_FILE.read_text(encoding="utf-8"))
    sources = {key: Citation(**source) for key, source in raw["sources"].items()}

    def cited(row: Mapping[str, Any]) -> dict[str, Any]:
        source = sources[row["source"]]
        return {**row, "source": source.text, "date": source.date}

    def read_generation(row: Mapping[str, Any]) -> Generation:
        cells = {key: cell for key, cell in row.items() if key != "name"}
        values = {key: _as_tuple(cell["value"]) for key, cell in cells.items()}
        return Generation(row["name"], **values, sources={key: sources[cell["source"]] for key, cell in cells.items()})

    generations = {row["name"]: read_generation(row) for row in raw["generations"]}
    hosts = {row.pop("machine_type"): Host(**row) for row in map(cited, raw["hosts"])}
    prices = [cited(row) for row in raw["prices"]]

    def read_slice(row: Mapping[str, Any]) -> Slice:
        generation = generations[row["generation"]]
        values = {"targets": generation.targets, **{key: _as_tuple(value) for key, value in row.items()}}
        entry = Slice(**values | {"generation": generation, "host": hosts.get(row["machine_type"])})
        return dataclasses.replace(entry, prices=tuple(_read_prices(prices, entry)))

    return Catalogue(tuple(generations.values()), tuple(read_slice(cited(row)) for row in raw["slices"]))


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _read_prices(rows: Iterable[Mapping[str, Any]], entry: Slice) -> Iterator[Price]:
    """Yield the prices of a slice.

    A row of the price list contains the price of a slice, or of one chip of a generation.
    """
    for row in rows:
        is_own = row.get("slice") == entry.name
        is_per_chip = row.get("generation") == entry.generation.name
        if is_own or is_per_chip:
            usd_per_hour = row["usd_per_hour"] if is_own else round(row["usd_per_chip_hour"] * entry.chips, 4)
            spot = row.get("spot", False)
            kind = f"{BILLED_BY[KUBEFLOW]}, {_how(spot)}"
            yield Price(usd_per_hour, row["region"], spot, kind, row["source"], row["date"])


def _how(spot: bool) -> str:
    return "spot" if spot else "on demand"


@dataclasses.dataclass(frozen=True)
class PaidMachine:
    """A machine, and the settings that determine the cost of a training run on the machine.

    Attributes:
        machine: Short name of a machine, from `tpu-pipelines machines`.
        region: Region of the price. Empty means the cheapest region for training on the machine.
        spot: Whether the price is that of a spot machine.
        target: Platform that trains and sets the price: `vertex` or `kubeflow`.
        timeout_seconds: Time limit of the training run, in seconds. 0 means a limit that preflight's estimate
            determines.
        attempts: Largest number of attempts at the training run. Each attempt may take `timeout_seconds`.

    Raises:
        InputError: If the target does not offer the machine. The message lists similar machines.
    """

    machine: str = CHEAPEST_MACHINE
    region: str = ""
    spot: bool = False
    target: Annotated[str, tuple(BILLED_BY)] = VERTEX
    timeout_seconds: NotNegative = 0
    attempts: Positive = 1

    def __post_init__(self) -> None:
        check_fields(self)
        self.slice.require_target(self.target)

    @functools.cached_property
    def slice(self) -> Slice:
        """The machine's entry in the catalogue.

        Raises:
            InputError: If Vertex AI would reject the machine.
        """
        return MachineSpec(self.machine, region=self.region, spot=self.spot).slice

    @property
    def price(self) -> Price | None:
        """Price of an hour on the platform `target`, or None if unknown."""
        return self.slice.price(self.region, self.spot, self.target)


@dataclasses.dataclass(frozen=True)
class MachineSpec:
    """Machine of a training job. Every instance is valid on the platforms in `slice.targets`.

    Attributes:
        name: Short name from `tpu-pipelines machines`. If you set no other field, you can write `machine: NAME`. The
            next four fields describe the same machine in Vertex AI's terms. If you leave them out, they are derived
            from the short name.
        machine_type: `cloud-tpu` for v2 and v3, `ct5lp-hightpu-…` for v5e, `ct6e-standard-…`, `tpu7x-standard-4t`; for
            GPUs, for example, `g2-standard-8`.
        accelerator_type: `TPU_V2` or `TPU_V3` with `cloud-tpu`; the type of a GPU, such as `NVIDIA_L4`; otherwise
            empty.
        accelerator_count: Number of TPU cores with `cloud-tpu`, or number of GPUs; otherwise 0.
        tpu_topology: Chips along each axis, such as `2x4`, for all TPUs except `cloud-tpu`.
        region: Region for the training run. If empty, the region from the settings is used.
        boot_disk_type: `pd-ssd` or `pd-standard` up to v5e and for GPUs, `hyperdisk-balanced` from v6e on. If empty,
            Vertex AI uses its default for the machine.
        boot_disk_size_gb: Size of the boot disk, from 100 (Vertex's default) to 64,000 GB.
        spot: Use a spot machine, which is cheaper but may be preempted at any time. The machine must have one host.
        reservation: `projects/PROJECT/zones/ZONE/reservations/NAME`. Empty means no reservation.
        timeout_seconds: Time limit of the training run, in seconds. With 0, the limit for a TPU on Vertex AI follows
            from preflight's estimate. In all other cases, 0 means a limit that follows from `preflight.max_price_usd`,
            or one day if that is not set.
        restart_job_on_worker_restart: Restart the whole job when one of its workers is restarted.
        disable_retries: Do not restart the job after an error of the platform.
        enable_web_access: Allow a shell in the training's container, which you open from the job's page on Vertex AI.
        persistent_resource_id: Persistent resource on Vertex AI whose machines the job uses. If empty, machines are
            started for the job.
        nfs_mounts: NFS shares that Vertex AI mounts at `/mnt/nfs/NAME`, each as `SERVER:/PATH=NAME`. The server must be
            in the network that the settings name.
        max_wait_seconds: Seconds to wait for the machine before the next fallback is tried. 0 means no limit.
        fallbacks: Machines to try, in order, if this machine is not available. A fallback cannot have fallbacks.

    Raises:
        InputError: If Vertex AI would reject the machine. The message lists the nearest machines.
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
    enable_web_access: bool = False
    persistent_resource_id: Annotated[str, _RESOURCE_ID] = ""
    nfs_mounts: tuple[Annotated[str, _NFS_MOUNT], ...] = ()
    max_wait_seconds: NotNegative = 24 * 3600
    fallbacks: tuple["MachineSpec", ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        machine = self.slice
        for key, value in {"name": machine.name, **machine.vertex_fields}.items():
            object.__setattr__(self, key, value)
        if self.region and self.region not in machine.regions:
            raise InputError(_explain_region(machine, self.region))
        able = machine.generation.boot_disk_types
        reserved = _RESERVATION.fullmatch(self.reservation)
        check_together(
            (
                self.spot and machine.hosts > 1,
                f"Spot machines must have one host, but {machine.name} has {machine.hosts}. Received: spot=True. "
                f"Set spot: false, or use a machine with one host: {_of_one_host(machine.generation)}.",
            ),
            (
                self.reservation and not reserved,
                f"reservation must be projects/PROJECT/zones/ZONE/reservations/NAME. Received: {self.reservation!r}.",
            ),
            (
                self.reservation and self.spot,
                f"A spot machine cannot use a reservation. Received: spot=True, reservation={self.reservation!r}. "
                "Remove one of them.",
            ),
            (
                self.boot_disk_type and self.boot_disk_type not in able,
                f"{machine.generation.name} does not support the boot disk {self.boot_disk_type}: expected "
                f"boot_disk_type={' or '.join(able)}, or none. Received: {self.boot_disk_type!r} with {machine.name}.",
            ),
            (
                self.disable_retries and self.restart_job_on_worker_restart,
                "disable_retries would override restart_job_on_worker_restart. Received: both are true. Set only one "
                "of them.",
            ),
            (
                any(fallback.fallbacks for fallback in self.fallbacks),
                "A fallback cannot have fallbacks. List all fallbacks, in order, under the machine.",
            ),
        )
        if reserved and self.region and reserved["region"] != self.region:
            raise InputError(
                f"The reservation must be in the region {self.region!r}. Received: {self.reservation!r}, which is in "
                f"{reserved['region']!r}. Change the region or the reservation."
            )
        if others := [other.slice.name for other in self.fallbacks if other.slice.is_gpu != machine.is_gpu]:
            raise InputError(
                f"TPUs and GPUs need different images: expected fallbacks of the same kind as {machine.name}, received "
                f"{', '.join(others)}. Remove these fallbacks."
            )

    @functools.cached_property
    def slice(self) -> Slice:
        """The machine's entry in the catalogue.

        Raises:
            InputError: If no machine of the catalogue has this name or these fields of Vertex, or if name and fields
                contradict each other.
        """
        received = {key: getattr(self, key) for key in VERTEX_FIELDS}
        if not self.name:
            if not self.machine_type:
                raise InputError(
                    "The machine needs a name or a machine_type. Received: neither. Add, for example, name: v5e-8."
                )
            matches = [entry for entry in load_catalogue().slices if entry.vertex_fields == received]
            if not matches:
                raise InputError(_explain_mismatch(received))
            return matches[0]
        named = load_catalogue().find(self.name)
        for key, expected in named.vertex_fields.items():
            if received[key] and received[key] != expected:
                raise InputError(
                    f"The machine {self.name!r} has {key}={expected!r}. Received: {key}={received[key]!r}. Remove "
                    f"name or {key}."
                )
        return named

    @property
    def paid(self) -> PaidMachine:
        """This machine with the price of Vertex AI, or of GKE if Vertex AI does not offer the machine."""
        target = self.slice.targets[0]
        return PaidMachine(self.name, self.region, self.spot, target, timeout_seconds=self.timeout_seconds)

    def in_region(self, region: str) -> "MachineSpec":
        """Return a copy of the machine. If the machine has no region, the copy has the region `region`.

        Raises:
            InputError: If the region does not offer the machine, or the machine's reservation is in another region.
        """
        return dataclasses.replace(self, region=self.region or region)

    def choose_accelerator(self, requested: str, field: str) -> str:
        """Return the accelerator of a step on this machine: the requested accelerator or, for `auto`, the machine's.

        Args:
            requested: `auto`, `cpu`, `gpu` or `tpu`.
            field: Name of the setting or input in the error message.

        Raises:
            InputError: If the machine does not have the requested accelerator.
        """
        own = self.slice.generation.accelerator
        if requested not in ("auto", "cpu", own):
            raise InputError(
                f"{self.name} has no {requested.upper()}: expected {field} to be {own} or auto. Received: "
                f"{requested!r}."
            )
        return own if requested == "auto" else requested

    def check_replicas(self, accelerator: str, num_replicas: int, field: str) -> None:
        """Check that a step on this machine uses all its devices, or the CPU.

        Args:
            accelerator: Accelerator of the step, as `choose_accelerator` returns it.
            num_replicas: Requested number of devices; 0 means all.
            field: Name of the setting or input in the error message.

        Raises:
            InputError: If the step would use more or fewer devices than the machine has. You would pay for unused
                devices.
        """
        devices = self.slice.devices
        if accelerator != "cpu" and num_replicas not in (0, devices):
            raise InputError(
                f"A step uses all devices of its machine: expected {field}={devices} or 0 with {self.name}. Received: "
                f"{num_replicas}. Remove this setting."
            )

    def require_one_host(self, reason: str) -> None:
        """Check that this machine and all its fallbacks have one host.

        Args:
            reason: Beginning of the error message, a clause such as `evaluate_model runs on one host`.

        Raises:
            InputError: If a machine has several hosts.
        """
        for machine in self.candidates:
            entry = machine.slice
            if entry.hosts > 1:
                raise InputError(
                    f"{reason}, but {entry.name} has {entry.hosts} hosts. Use {_of_one_host(entry.generation)}, or "
                    f"another machine with one host. To only estimate a training run on {entry.name}, use "
                    "`tpu-pipelines preflight`."
                )

    @functools.cached_property
    def candidates(self) -> tuple["MachineSpec", ...]:
        """This machine and its fallbacks, in order, each without its own fallbacks."""
        return dataclasses.replace(self, fallbacks=()), *self.fallbacks


def parse_machine(value: str | Mapping[str, Any], backend: str = "auto", where: str = "machine") -> MachineSpec:
    """Parse the section `machine` of a configuration.

    Args:
        value: A short name, or a mapping with `name` or Vertex AI's fields and any other field of `MachineSpec`.
            `fallbacks` is a list of such names or mappings. A fallback that does not set a field, such as `spot`,
            inherits it from the machine. The reservation is not inherited, because it is for one machine type.
        backend: Backend of the training: `tensorflow`, `jax` or `auto`, which chooses one that the machine supports.
        where: Name of the field in error messages.

    Raises:
        InputError: If Vertex AI would reject the machine, or the machine does not support the backend. The message
            lists the nearest machines.

    Example:
        >>> parse_machine({"name": "v5e-8", "spot": True, "fallbacks": ["v6e-8"]}).fallbacks[0].machine_type
        'ct6e-standard-8t'
    """
    spec: MachineSpec = read_by_hand(_with_fallbacks(value, where), MachineSpec, where)
    for i, machine in enumerate(spec.candidates):
        try:
            machine.slice.require_backend(backend)
        except InputError as error:
            place = f"{where}.fallbacks[{i - 1}]" if i else where
            raise InputError(f"Cannot use {place}: {error}") from error
    return spec


def _with_fallbacks(value: Any, where: str) -> dict[str, Any]:
    """Convert a machine, which is a short name or a mapping, to a mapping.

    Its fallbacks are also converted to mappings. They inherit the fields that they do not set, except `_OWN_FIELDS`.
    """
    if isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise InputError(
            f"Cannot use {where}: expected the short name of a machine, such as v5e-8, or a mapping of fields. "
            f"Received: {value!r}."
        )
    fallbacks = value.get("fallbacks", ())
    if not isinstance(fallbacks, list | tuple):
        raise InputError(
            f"Cannot use {where}.fallbacks: expected a list of machines, such as [v5e-8]. Received: {fallbacks!r}."
        )
    shared = {key: item for key, item in value.items() if key not in _OWN_FIELDS}
    whole = [_with_fallbacks(fallback, f"{where}.fallbacks[{i}]") for i, fallback in enumerate(fallbacks)]
    return {**value, "fallbacks": [shared | fallback for fallback in whole]}


def _names(slices: Iterable[Slice]) -> str:
    return ", ".join(entry.name for entry in slices)


def _nearest(slices: Iterable[Slice], chips: int) -> str:
    """Return, for each generation, the name of the slice whose number of chips is closest to `chips`, as one text."""
    generations: defaultdict[str, list[Slice]] = defaultdict(list)
    for entry in slices:
        generations[entry.generation.name].append(entry)
    return _names(min(some, key=lambda entry: abs(math.log(entry.chips / chips))) for some in generations.values())


def _of_one_host(generation: Generation) -> str:
    """Return the names of a generation's slices with one host, as one text."""
    return _names(entry for entry in load_catalogue().slices if entry.generation == generation and entry.hosts == 1)


def _explain_unknown(catalogue: Catalogue, name: str, plain: str) -> str:
    """Return an error message for an unknown name.

    The message lists the slices of the same generation or machine type.
    """
    names = [entry.name for entry in catalogue.generations if re.match(rf"(tpu)?{entry.name}([-:]|$)", plain)]
    family = max(names, key=len, default="")
    if siblings := [entry for entry in catalogue.slices if entry.generation.name == family]:
        # Google's tools disagree about 7x: the number counts chips in some tools, and cores (two per chip) in others.
        counts_cores = siblings[0].name == f"{family}-{2 * siblings[0].chips}"
        unit = "GPUs" if siblings[0].is_gpu else "cores" if counts_cores else "chips"
        return f"There is no machine {name!r}. Expected one of {_names(siblings)}; the number counts {unit}."
    if same_machine := [str(entry) for entry in catalogue.slices if entry.machine_type == plain]:
        return f"{name!r} is a machine type, not a short name. Expected one of {', '.join(same_machine)}."
    return (
        f"There is no machine {name!r}. Expected a short name such as v5e-8, v3-32, 7x-4 or l4-1."
        f"{did_you_mean(plain, [entry.name for entry in catalogue.slices])} `tpu-pipelines machines` lists all."
    )


def _explain_mismatch(wanted: Mapping[str, Any]) -> str:
    """Return an error message for a combination of Vertex AI's machine fields that no slice has.

    The message lists the nearest slices.
    """
    slices = load_catalogue().slices
    machine_type = wanted["machine_type"]
    generations = {entry.generation for entry in slices if entry.machine_type == machine_type}
    if not generations:
        known = dict.fromkeys(entry.machine_type for entry in slices)
        return (
            f"There is no machine type {machine_type!r}. Expected one of {', '.join(known)}."
            f"{did_you_mean(machine_type, known)}"
        )
    chips = math.prod(map(int, re.findall(r"\d+", wanted["tpu_topology"])))

    def difference(entry: Slice) -> tuple[int, float]:
        ratio = entry.chips / chips if wanted["tpu_topology"] else entry.devices / max(wanted["accelerator_count"], 1)
        return sum(entry.vertex_fields[key] != wanted[key] for key in VERTEX_FIELDS), abs(math.log(ratio))

    nearest = sorted((entry for entry in slices if entry.generation in generations), key=difference)[:2]
    described = [f"{entry.name} has {_fields(entry.vertex_fields)}" for entry in nearest]
    return f"No machine has {_fields(wanted)}. Nearest: {'; '.join(described)}. `tpu-pipelines machines` lists all."


def _fields(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items() if value)


def _explain_region(machine: Slice, region: str) -> str:
    """Return an error message for a region in which a slice cannot train.

    The message lists other regions and other slices.
    """
    generation = machine.generation
    there = [
        entry
        for entry in load_catalogue().slices
        if machine.targets[0] in entry.targets and entry.is_gpu == machine.is_gpu and region in entry.regions
    ]
    if region in generation.serving_only_regions:
        reason = f"{region} offers {generation.name} for serving, but not for training."
    elif machine.hosts > 1 and region in generation.regions:
        reason = f"{region} offers {generation.name} only with one host, but {machine.name} has {machine.hosts} hosts."
    else:
        reason = f"{region} does not offer {generation.name} for training."
    message = f"{reason} Received: {machine.name}, region={region!r}. Expected one of {', '.join(machine.regions)}."
    if there:
        return f"{message} Nearest in {region}: {_nearest(there, machine.chips)}."
    return message + did_you_mean(region, machine.regions)
