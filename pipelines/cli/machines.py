"""The command `machines`: the catalogue of TPU machines, chosen from and laid out for a terminal."""

import argparse
import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.terminal import lay_out
from tpu_components.core.machines.machine_spec import KUBEFLOW, VERTEX, Price, Slice, load_catalogue
from tpu_pipelines.cli.output import DONE, show

_COLUMNS = {
    "name": "<",
    "machine type": "<",
    "Vertex takes": "<",
    "chips": ">",
    "devices": ">",
    "hosts": ">",
    "HBM GiB": ">",
    "TFLOP/s": ">",
    "Vertex $/h": ">",
    "GKE $/h": ">",
    "in": "<",
}
_WIDTH = 110
_NOTES = """\
devices   as JAX counts them: replicas
HBM GiB   what a compiled program may use of a device's memory
TFLOP/s   bfloat16 peak of the whole slice
quota     0 by default: ask for TPU training quota in your region first"""


def machines(arguments: argparse.Namespace) -> int:
    """List the TPU machines that a configuration can name."""
    slices, region = select_slices(arguments.generation, arguments.region), arguments.region
    show(as_rows(slices, region), as_table(slices, region), arguments.json)
    return DONE


def select_slices(generation: str = "", region: str = "") -> tuple[Slice, ...]:
    """Return the slices of one generation, or that train in one region, or both; empty is any.

    Raises:
        InputError: If there is no such generation or region, or the one does not train in the other.
    """
    catalogue = load_catalogue()
    generations = {entry.name: entry for entry in catalogue.generations}
    regions = sorted({name for entry in catalogue.generations for name in entry.regions})
    for what, name, known in (("generation", generation, list(generations)), ("region", region, regions)):
        if name and name not in known:
            raise InputError(f"Unknown {what} {name!r}: expected one of {', '.join(known)}.{did_you_mean(name, known)}")
    if generation and region and region not in generations[generation].regions:
        raise InputError(
            f"{generation} does not train in {region}. Expected one of {', '.join(generations[generation].regions)}."
        )
    return tuple(
        entry
        for entry in catalogue.slices
        if generation in ("", entry.generation.name) and (not region or region in entry.regions)
    )


def as_rows(slices: Sequence[Slice], region: str = "") -> list[dict[str, Any]]:
    """Return plain values: the fields of each slice, its regions, and its prices in `region` or where it is cheapest.

    `price` is Vertex AI's, `kubeflow_price` Compute Engine's, which a cluster on GKE pays.
    """
    rows = []
    for entry in slices:
        vertex, kubeflow = (price and dataclasses.asdict(price) for price in _prices(entry, region))
        rows.append(dataclasses.asdict(entry) | {"regions": entry.regions, "price": vertex, "kubeflow_price": kubeflow})
    return rows


def _prices(entry: Slice, region: str) -> tuple[Price | None, Price | None]:
    return entry.price(region, target=VERTEX), entry.price(region, target=KUBEFLOW)


def as_table(slices: Sequence[Slice], region: str = "") -> str:
    """Return a table of the slices, and below it the regions of each generation and notes on columns and prices."""
    prices = {entry: _prices(entry, region) for entry in slices}
    rows = [
        (
            entry.name,
            entry.machine_type,
            entry.tpu_topology or f"{entry.accelerator_count} {entry.accelerator_type}",
            str(entry.chips),
            str(entry.devices),
            str(entry.hosts),
            f"{entry.generation.hbm_usable_bytes / 2**30:.2f}",
            f"{entry.chips * entry.generation.peak_bf16_flops / 1e12:,.0f}",
            *(f"{price.usd_per_hour:,.2f}" if price else "?" for price in both),
            both[0].region if both[0] else "",
        )
        for entry, both in prices.items()
    ]
    known = [price for both in prices.values() for price in both]
    return "\n".join([*lay_out(_COLUMNS, rows), "", *_regions(slices), "", _NOTES, *_price_notes(known)])


def _regions(slices: Sequence[Slice]) -> list[str]:
    lines = []
    for generation in dict.fromkeys(entry.generation for entry in slices):
        line = f"{generation.name:<10}{', '.join(generation.regions)}"
        if generation.pod_regions != generation.regions:
            line += f"; several hosts: {', '.join(generation.pod_regions)}"
        lines.append(line)
    return lines


def _price_notes(prices: Sequence[Price | None]) -> list[str]:
    notes = dict.fromkeys(
        f"{'Vertex' if price.target == VERTEX else 'GKE':<10}{price.kind} ({price.date}): {price.source}"
        for price in prices
        if price
    )
    gpu = load_catalogue().gpu
    notes[f"GPU       {gpu.kind}: ${gpu.usd_per_hour:.2f} an hour in {gpu.region} ({gpu.date}): {gpu.source}"] = None
    wrapped = [line for note in notes for line in textwrap.wrap(note, _WIDTH, subsequent_indent=" " * 10)]
    return [*wrapped, *(["?         no trustworthy price is known"] if None in prices else [])]
