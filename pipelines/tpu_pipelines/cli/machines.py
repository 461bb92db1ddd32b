"""The command `machines`: selects machines with TPUs or GPUs from the catalogue, and prints them as a table."""

import argparse
import dataclasses
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpu_components.core.base.errors import DONE, InputError, did_you_mean
from tpu_components.core.machines.machine_spec import KUBEFLOW, VERTEX, Price, Slice, load_catalogue
from tpu_components.core.pages.blocks import Table
from tpu_pipelines.cli.output import show

_COLUMNS = {
    "name": "<",
    "machine type": "<",
    "accelerator": "<",
    "chips": ">",
    "devices": ">",
    "hosts": ">",
    "GiB": ">",
    "TFLOP/s": ">",
    "Vertex $": ">",
    "GKE $": ">",
    "region": "<",
}
_WIDTH = 110
_PRICE_LISTS = {VERTEX: "Vertex", KUBEFLOW: "GKE"}
_NOTES = (
    "devices   number of JAX devices; each is a replica\nGiB       memory of a device that a compiled program can "
    "use; for a GPU, its whole memory\nTFLOP/s   bfloat16 peak of the whole TPU slice; no time is estimated for a "
    "GPU\n$         per hour, for the whole machine\n-         not offered, or unknown\nquota     0 by default: "
    "request training quota in your region first"
)


def machines(arguments: argparse.Namespace) -> int:
    """List the machines that a configuration can name and return the exit code."""
    offers = select_slices(arguments.generation, arguments.region)
    show(as_rows(offers), as_table(offers), arguments.json)
    return DONE


Prices = Mapping[str, Price | None]  # Price on each platform that offers a slice; None if it is not known.


def select_slices(generation: str = "", region: str = "") -> dict[Slice, Prices]:
    """Return the catalogue's slices of a generation that are available in a region, each with its prices.

    An empty generation or region selects all. The prices are those in `region` or, if it is empty, in the cheapest
    region.

    Raises:
        InputError: If the generation or the region is unknown, or the generation is not available in the region.
    """
    catalogue = load_catalogue()
    generations = {entry.name: entry for entry in catalogue.generations}
    regions = sorted({name for entry in catalogue.generations for name in entry.regions})
    for what, name, known in (("generation", generation, list(generations)), ("region", region, regions)):
        if name and name not in known:
            raise InputError(f"Unknown {what} {name!r}: expected one of {', '.join(known)}.{did_you_mean(name, known)}")
    if generation and region and region not in generations[generation].regions:
        raise InputError(
            f"{generation} is not available in {region}. Expected one of {', '.join(generations[generation].regions)}. "
            "Choose another region."
        )
    return {
        entry: {target: entry.price(region, target=target) for target in entry.targets}
        for entry in catalogue.slices
        if generation in ("", entry.generation.name) and (not region or region in entry.regions)
    }


def as_rows(offers: Mapping[Slice, Prices]) -> list[dict[str, Any]]:
    """Return a mapping for each slice: its fields, `regions`, `price` and `kubeflow_price`.

    `price` is the price of Vertex AI. `kubeflow_price` is the price of Compute Engine, which also applies to a cluster
    on GKE.
    """
    rows = []
    for entry, known_prices in offers.items():
        known = {target: dataclasses.asdict(price) for target, price in known_prices.items() if price}
        prices = {"price": known.get(VERTEX), "kubeflow_price": known.get(KUBEFLOW)}
        rows.append(dataclasses.asdict(entry) | {"regions": entry.regions, **prices})
    return rows


def _told(prices: Prices, target: str) -> str:
    if target not in prices:
        return "-"
    return f"{price.usd_per_hour:,.2f}" if (price := prices[target]) else "?"


def as_table(offers: Mapping[Slice, Prices]) -> str:
    """Return a table of the slices.

    Below the table are the regions of each generation, and notes on the columns and the prices.
    """
    rows = [
        (
            entry.name,
            entry.machine_type,
            entry.tpu_topology or f"{entry.accelerator_count} {entry.accelerator_type.removeprefix('NVIDIA_')}",
            str(entry.chips),
            str(entry.devices),
            str(entry.hosts),
            f"{entry.generation.hbm_usable_bytes / 2**30:.2f}",
            "-" if entry.is_gpu else f"{entry.chips * entry.generation.peak_bf16_flops / 1e12:,.0f}",
            _told(prices, VERTEX),
            _told(prices, KUBEFLOW),
            next((price.region for price in prices.values() if price), ""),
        )
        for entry, prices in offers.items()
    ]
    offered = [price for prices in offers.values() for price in prices.values()]
    return "\n".join([*Table(_COLUMNS, rows).lines(), "", *_regions(offers), "", _NOTES, *_price_notes(offered)])


def _regions(slices: Iterable[Slice]) -> list[str]:
    lines = []
    for generation in dict.fromkeys(entry.generation for entry in slices):
        line = f"{generation.name:<9} {', '.join(generation.regions)}"
        if generation.pod_regions not in ((), generation.regions):
            line += f"; several hosts: {', '.join(generation.pod_regions)}"
        lines += textwrap.wrap(line, _WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False)
    return lines


def _price_notes(prices: Sequence[Price | None]) -> list[str]:
    notes = dict.fromkeys(
        f"{_PRICE_LISTS[price.target]:<10}{price.kind} ({price.date}): {price.source}" for price in prices if price
    )
    wrapped = [line for note in notes for line in textwrap.wrap(note, _WIDTH, subsequent_indent=" " * 10)]
    return [*wrapped, *(["?         no trustworthy price is known"] if None in prices else [])]
