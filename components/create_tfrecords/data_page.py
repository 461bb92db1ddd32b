"""Writes an HTML report of the data, to look at before a training is paid for."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.histograms import draw_histograms
from tpu_components.core.examples.artifacts import SPLITS, TRAIN, Manifest
from tpu_components.core.examples.images import UnreadableImageError, decode_pixels
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, TEXT
from tpu_components.core.pages.pictures import thumbnail
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.work.workers import in_threads
from tpu_components.create_tfrecords.measuring import FIGURES, LABELS

_PER_CLASS, _SHOWN_CLASSES, _SHOWN_TEXTS = 6, 20, 40
_THUMBNAIL_PIXELS = 72
_TEXT_CHARACTERS = 240
_BALANCE_ROWS, _ASIDE_ROWS, _COPY_SETS, _COPY_MEMBERS = 60, 100, 30, 6
_COLOURS = dict(zip(SPLITS, ("blue", "orange", "green"), strict=True))


@dataclasses.dataclass(frozen=True)
class Sample:
    """An example to show.

    Attributes:
        key: Key of the example.
        picture: Small picture as a `data:` URI; empty for a text.
        text: Beginning of a text; empty for a picture.
    """

    key: str
    picture: str = ""
    text: str = ""


def choose_samples(
    listing: Listing, stored: Mapping[str, np.ndarray], params: WriteParams
) -> dict[str, tuple[Sample, ...]]:
    """Choose the first few stored examples of each class; for a regression, of each fifth of its first target.

    Args:
        listing: The source.
        stored: Examples by split, in the order in which they are stored: int[…], indices into the listing.
        params: Parameters to read the examples.

    Returns:
        Examples by class, for a limited number of classes.
    """
    examples = stored[TRAIN] if TRAIN in stored else next(iter(stored.values()), np.empty(0, int))
    per_class = _PER_CLASS if listing.kind != TEXT else max(1, _SHOWN_TEXTS // max(len(listing.class_names), 1))
    members = _members(listing, listing.labels[examples], params.task)
    chosen = {
        name: examples[np.flatnonzero(are_members)[: min(per_class, _PER_CLASS)]]
        for name, are_members in itertools.islice(members, _SHOWN_CLASSES)
    }
    shown = {
        name: in_threads(lambda example: _show(listing, example, params), listing.place, some.tolist())
        for name, some in chosen.items()
    }
    return {name: tuple(sample for sample in samples if sample) for name, samples in shown.items()}


def _members(listing: Listing, labels: np.ndarray, task: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every class, and which examples belong to it, bool[num_examples]."""
    names = listing.class_names
    if task == CLASSIFICATION:
        yield from ((name, labels == number) for number, name in enumerate(names))
    elif task == MULTI_LABEL:
        yield from ((name, labels[:, number] == 1) for number, name in enumerate(names))
    else:
        edges = np.quantile(labels[:, 0], np.linspace(0, 1, 6)) if len(labels) else np.zeros(6)
        for low, high in itertools.pairwise(edges.tolist()):
            yield f"{names[0]} from {low:.4g} to {high:.4g}", (labels[:, 0] >= low) & (labels[:, 0] <= high)


def _show(listing: Listing, example: int, params: WriteParams) -> Sample | None:
    key = listing.keys[example]
    with contextlib.suppress(InputError, UnreadableImageError):
        if listing.kind == TEXT:
            text = listing.read(example).decode("utf-8", "replace")
            return Sample(key, text=text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}…")
        return Sample(key, thumbnail(decode_pixels(listing.read(example), params.image_rule), _THUMBNAIL_PIXELS))
    return None


def render_page(manifest: Manifest, copies: Mapping[str, Any], samples: Mapping[str, Sequence[Sample]]) -> str:
    """Render the page; equal data give the same bytes.

    Args:
        manifest: Manifest of the records.
        copies: Content of `copies.json`.
        samples: Examples to show, by class.
    """
    from tpu_components.core.pages import page  # Imported here, so that workers start faster.

    jinja = page.environment(Path(__file__).parent)
    splits = manifest.splits
    num_bytes = sum(shard.num_bytes for split in splits.values() for shard in split.shards)
    num_examples = sum(split.num_examples for split in splits.values())
    stored = f"{num_examples:,} {manifest.input.plural}, stored in {num_bytes / 2**20:,.1f} MiB"
    return jinja.get_template("data.html.jinja").render(
        manifest=manifest,
        title=manifest.source,
        subtitle=f"{stored} · divided by: {manifest.split_rule}",
        head=(),
        num_examples=num_examples,
        colours=_COLOURS,
        balance=_balance(manifest),
        balance_rows=_BALANCE_ROWS,
        charts=_charts(manifest),
        targets=manifest.class_names if manifest.task == REGRESSION else (),
        samples={name: some for name, some in samples.items() if some},
        is_cut=manifest.task != REGRESSION and len(manifest.class_names) > len(samples),
        aside=sorted(manifest.quarantined, key=lambda item: item.key)[:_ASIDE_ROWS],
        copies=copies,
        sets=[{**copied, "shown": copied["examples"][:_COPY_MEMBERS]} for copied in copies["sets"][:_COPY_SETS]],
        thumbnail_pixels=_THUMBNAIL_PIXELS,
    )


def _balance(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the classes with their numbers of examples by split, the largest first; of many, only the extremes."""
    if manifest.task == REGRESSION:
        return []
    by_class = zip(*(split.class_counts for split in manifest.splits.values()), strict=True)
    rows: list[dict[str, Any]] = [
        {"name": name, "counts": counts, "total": sum(counts)}
        for name, counts in zip(manifest.class_names, by_class, strict=True)
    ]
    rows.sort(key=lambda row: (-row["total"], row["name"]))
    half = _BALANCE_ROWS // 2
    shown = rows if len(rows) <= _BALANCE_ROWS else [*rows[:half], *rows[-half:]]
    return [{**row, "share": row["total"] / max(rows[0]["total"], 1)} for row in shown]


def _charts(manifest: Manifest) -> list[dict[str, Any]]:
    """Return name, unit, drawing and numbers by split of each figure."""
    charts = []
    for figure in (*FIGURES.get(manifest.input.kind, ()), LABELS):
        by_split = {
            name: split.distributions[figure.name]
            for name, split in manifest.splits.items()
            if figure.name in split.distributions
        }
        if by_split:
            name = figure.name.replace("_", " ")
            charts.append(
                {
                    "name": name,
                    "unit": figure.unit,
                    "by_split": by_split,
                    "svg": draw_histograms(name, by_split, _COLOURS),
                }
            )
    return charts
