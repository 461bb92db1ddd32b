"""Renders `data.html`, a report about a data set that you can check before you pay for training."""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import markupsafe
import numpy as np

from tpu_components.core.base.formatting import byte_size, percent
from tpu_components.core.drift.histograms import draw_histograms, draw_legend
from tpu_components.core.drift.measuring import FIGURES, LABELS
from tpu_components.core.examples.artifacts import SPLITS, TRAIN, Distribution, Manifest, TargetStatistics
from tpu_components.core.examples.images import read_image
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL, REGRESSION, TEXT, ImageRule
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Block, Cell, Figure, Section, Table
from tpu_components.core.pages.pictures import PICTURES, show_picture
from tpu_components.core.sources.listing import Listing
from tpu_components.create_tfrecords.planning import DatasetPlan

_PER_CLASS, _SHOWN_CLASSES, _SHOWN_TEXTS = 6, 20, 40
_PICTURE_PIXELS = 72
_TEXT_CHARACTERS = 240
_BALANCE_ROWS, _ASIDE_ROWS, _COPY_SETS, _COPY_MEMBERS = 60, 100, 30, 6
_COLOURS = dict(zip(SPLITS, ("blue", "orange", "green"), strict=True))
_CHART = markupsafe.Markup('<h3>{}</h3><p class="note">{}</p>{}')
_SAMPLES = markupsafe.Markup("<h3><bdi>{}</bdi></h3>{}")
_TEXT = markupsafe.Markup('<blockquote title="{}">{}</blockquote>')


def choose_samples(plan: DatasetPlan, stored: Mapping[str, np.ndarray]) -> dict[str, markupsafe.Markup]:
    """Render the first few training examples of each class.

    If there is no training split, the examples are from the first split. For a regression, the values of the first
    target are divided at their quintiles into five ranges, which take the place of classes.

    Args:
        plan: The plan of the data set.
        stored: Examples by split, in the order in which they are stored: int[…], indices into the listing.

    Returns:
        HTML by class name or range, for at most 20 classes.
    """
    listing = plan.listing
    examples = stored[TRAIN] if TRAIN in stored else next(iter(stored.values()), np.empty(0, int))
    per_class = _PER_CLASS
    row = PICTURES
    show = functools.partial(_show, plan.params.image_rule)
    if listing.kind == TEXT:
        per_class = min(_PER_CLASS, max(1, _SHOWN_TEXTS // max(len(listing.class_names), 1)))
        row = markupsafe.Markup("{}")
        show = functools.partial(_show, None)
    samples = {}
    members = _members(listing, listing.labels[examples], plan.params.task)
    for name, are_members in itertools.islice(members, _SHOWN_CLASSES):
        chosen = examples[np.flatnonzero(are_members)[:per_class]]
        shown = [markup for markup in listing.select(chosen).read_each(show) if isinstance(markup, str)]
        if shown:
            samples[name] = row.format(markupsafe.Markup("".join(shown)))
    return samples


def _members(listing: Listing, labels: np.ndarray, task: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each class (or range of the first target), and a mask of its examples, bool[num_examples]."""
    names = listing.class_names
    if task == CLASSIFICATION:
        yield from ((name, labels == number) for number, name in enumerate(names))
    elif task == MULTI_LABEL:
        yield from ((name, labels[:, number] == 1) for number, name in enumerate(names))
    else:
        edges = np.quantile(labels[:, 0], np.linspace(0, 1, 6)) if len(labels) else np.zeros(6)
        for low, high in itertools.pairwise(edges.tolist()):
            yield f"{names[0]} from {low:.4g} to {high:.4g}", (labels[:, 0] >= low) & (labels[:, 0] <= high)


def _show(rule: ImageRule | None, key: str, content: Any) -> str:
    """Return HTML: a small version of an image or, if `rule` is None, the beginning of a text."""
    if rule:
        return show_picture(read_image(content, rule).pixels, _PICTURE_PIXELS, key)
    text = content.decode("utf-8", "replace")
    return _TEXT.format(key, text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}…")


def render_page(manifest: Manifest, copies: Mapping[str, Any], samples: Mapping[str, markupsafe.Markup]) -> str:
    """Return the report about a data set as HTML. The same data give the same bytes.

    Args:
        manifest: Manifest of the records.
        copies: Content of `copies.json`.
        samples: Examples to show, by class, from `choose_samples`.
    """
    num_bytes = sum(shard.num_bytes for split in manifest.splits.values() for shard in split.shards)
    num_examples = sum(split.num_examples for split in manifest.splits.values())
    stored = f"{num_examples:,} {manifest.input.plural}, stored in {byte_size(num_bytes)}"
    sections = {
        "Classes, largest first": _balance(manifest),
        "Targets": _targets(manifest),
        f"Statistics of the {manifest.input.plural}": _charts(manifest, num_examples),
        "Samples": _samples(manifest, samples),
        "Quarantined": _quarantined(manifest),
        "Copies": _copies(manifest, copies),
    }
    return page.render(
        manifest.source,
        [
            _numbers(manifest, copies, num_examples),
            *(Section(title, blocks) for title, blocks in sections.items() if blocks),
        ],
        subtitle=f"{stored} · divided by: {manifest.split_rule}",
    )


def _numbers(manifest: Manifest, copies: Mapping[str, Any], num_examples: int) -> list[Figure]:
    def judged(count: int, detail: str) -> dict[str, Any]:
        return {"value": f"{count:,}", "details": [Cell(detail, "bad" if count else "good")]}

    left_out = f"{copies['exact']:,} exact, {copies['near']:,} near, {copies['left_out']:,} left out"
    return [
        *(
            Figure(name, f"{split.num_examples:,}", [f"{percent(split.num_examples / num_examples, 1)} of all"])
            for name, split in manifest.splits.items()
        ),
        Figure("quarantined", **judged(len(manifest.quarantined), "unreadable or incomplete, not stored")),
        Figure("copies", f"{copies['exact'] + copies['near']:,}", [left_out]),
        Figure("copies across splits", **judged(copies["across_splits"], "sets that make the metrics too high")),
        Figure("copies with different labels", **judged(copies["contradictory"], "sets with at least one wrong label")),
    ]


def _balance(manifest: Manifest) -> list[Block]:
    """Return a table of examples per class and split, the largest class first.

    If there are over 60 classes, only the first 30 and the last 30 are shown.
    """
    if manifest.task == REGRESSION:
        return []
    by_class = zip(*(split.class_counts for split in manifest.splits.values()), strict=True)
    classes = sorted(zip(manifest.class_names, by_class, strict=True), key=lambda pair: (-sum(pair[1]), pair[0]))
    most = max(sum(classes[0][1]), 1)
    half = _BALANCE_ROWS // 2
    shown = classes if len(classes) <= _BALANCE_ROWS else [*classes[:half], *classes[-half:]]
    note = f"The largest and the smallest of {len(classes):,} classes." if len(shown) < len(classes) else ""
    rows = [
        (
            Cell(name),
            *(Cell(f"{count:,}", "" if count else "bad") for count in counts),
            Cell(f"{sum(counts):,}", share=sum(counts) / most),
        )
        for name, counts in shown
    ]
    return [note, Table({"Class": "<", **dict.fromkeys(manifest.splits, ">"), "All": ">"}, rows)]


def _targets(manifest: Manifest) -> list[Block]:
    if manifest.task != REGRESSION:
        return []
    return [
        _statistics(
            "Target",
            [
                (target, name, split.targets[place])
                for place, target in enumerate(manifest.class_names)
                for name, split in manifest.splits.items()
            ],
        )
    ]


def _charts(manifest: Manifest, num_examples: int) -> list[Block]:
    """Return histograms and statistics, by split, of each measurement of the examples, such as brightness."""
    charts = []
    rows = []
    measured = 0
    for figure in (*FIGURES.get(manifest.input.kind, ()), LABELS):
        by_split = {
            name: split.distributions[figure.name]
            for name, split in manifest.splits.items()
            if figure.name in split.distributions
        }
        if by_split:
            name = figure.name.replace("_", " ")
            charts.append(_CHART.format(name, figure.unit, draw_histograms(name, by_split, _COLOURS)))
            rows += [(name, *pair) for pair in by_split.items()]
            # The number of measured examples of the first figure: the last figure, labels, is counted in all examples.
            measured = measured or sum(distribution.num_examples for distribution in by_split.values())
    if not charts:
        return []
    part = (
        f"Measured on {measured:,} {manifest.input.plural}, chosen by their hashes. " if measured < num_examples else ""
    )
    colours = {name: _COLOURS[name] for name in manifest.splits}
    return [
        f"{part}The height of a bar is a share of the examples of its split.",
        draw_legend(colours),
        charts,
        _statistics("Figure", rows),
    ]


def _statistics(first: str, rows: Sequence[tuple[str, str, TargetStatistics | Distribution]]) -> Table:
    columns = {first: "<", "Split": "<", "Mean": ">", "Standard deviation": ">", "Minimum": ">", "Maximum": ">"}
    return Table(
        columns,
        [
            (name, split, *(f"{value:.5g}" for value in (row.mean, row.std, row.minimum, row.maximum)))
            for name, split, row in rows
        ],
    )


def _samples(manifest: Manifest, samples: Mapping[str, markupsafe.Markup]) -> list[Block]:
    is_cut = manifest.task != REGRESSION and len(manifest.class_names) > _SHOWN_CLASSES
    note = f"Samples of the first {_SHOWN_CLASSES} of {len(manifest.class_names):,} classes." if is_cut else ""
    return [note, [_SAMPLES.format(*pair) for pair in samples.items()]] if samples else []


def _quarantined(manifest: Manifest) -> list[Block]:
    aside = sorted(manifest.quarantined, key=lambda item: item.key)[:_ASIDE_ROWS]
    note = (
        f"The first {len(aside)} of {len(manifest.quarantined):,} quarantined inputs. dataset.json lists all of them."
    )
    table = Table({"Input": "<", "Reason": "<"}, [(item.key, Cell(item.reason, "path")) for item in aside])
    return [note if len(aside) < len(manifest.quarantined) else "", table] if aside else []


def _copies(manifest: Manifest, copies: Mapping[str, Any]) -> list[Block]:
    rows = []
    for copied in copies["sets"][:_COPY_SETS]:
        marks = {"several labels": copied["contradictory"], "across splits": copied["across_splits"]}
        faults = [fault for fault, is_marked in marks.items() if is_marked]
        kind = ", ".join(["equal" if copied["equal"] else "nearly equal", *faults])
        members = copied["examples"][:_COPY_MEMBERS]
        shown = " · ".join(f"{member['key']} ({member['split']}, {member['label']})" for member in members)
        more = len(copied["examples"]) - len(members)
        rows.append((Cell(kind, "bad" if faults else ""), Cell(f"{shown} and {more} more" if more else shown, "path")))
    note = (
        f"Sets of exact or near copies of {manifest.input.plural}. Sets with several labels or splits come first. "
        "copies.json lists more."
    )
    return [note, Table({"Set": "<", "Examples": "<"}, rows)] if rows else []
