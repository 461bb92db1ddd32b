"""Compares two data sets. Writes their differences, and a page with histograms and example images of both."""

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import markupsafe
import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.drift.histograms import SWATCH, draw_histograms, draw_legend
from tpu_components.core.drift.measuring import FIGURES, measure_pictures, thin_out
from tpu_components.core.drift.shifts import (
    Shift,
    as_dict,
    figures_of,
    find_shifts,
    say_power,
    say_rule,
    say_verdict,
)
from tpu_components.core.drift.sketches import DataSketch
from tpu_components.core.drift.version_sketches import sketch_at
from tpu_components.core.examples.artifacts import KEY_FEATURE, Distribution, Manifest
from tpu_components.core.examples.decoding import decode_batch
from tpu_components.core.examples.images import UnreadableImageError
from tpu_components.core.examples.interface import IMAGE, ImageInput
from tpu_components.core.examples.records import RAW, DamagedRecordError, read_shard
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.pages import page
from tpu_components.core.pages.pictures import PICTURES, show_picture
from tpu_components.core.registry.opening import parse_reference
from tpu_components.find_drift.params import DriftParams, DriftResult

DRIFT_FILE, DRIFT_PAGE_FILE = "drift.json", "drift.html"
_JOIN = markupsafe.Markup("").join
_COLOURS = {"now": "orange", "before": "blue"}
_MOST_READ, _SHOWN, _PICTURE_PIXELS = 200, 6, 72
_FROM, _TO = 0.05, 0.95  # Quantiles of the first and the last image that are shown.
_PICTURES = PICTURES.format(SWATCH + "{}")
_PANEL = markupsafe.Markup(
    "<h3>{name}{verdict}</h3>{chart}{pictures}"
    '<p class="note">now {now}, before {before}. {measure}: {effect:.3f}; threshold {threshold:g}; p-value {luck:.2g}.'
    "</p>"
)


def find_drift(params: DriftParams, records_dir: Path, output: Path) -> DriftResult:
    """Compare records with the data of a registered version, or with other records.

    Args:
        params: Data to compare with, and confidence of the tests.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder for drift.json and drift.html, written atomically.

    Raises:
        InputError: If one of the two data sets has no statistics to compare.
    """
    storage.require_output(output, DRIFT_FILE)
    new = sketch_at(str(records_dir))
    old = sketch_at(params.against)
    shifts = find_shifts(new, old, params.confidence)
    drifted = tuple(shift.figure for shift in shifts if shift.drifted)
    with storage.staged_directory(output) as staged:
        storage.write_json(staged / DRIFT_FILE, as_dict(shifts))
        write_page(new, old, shifts, staged / DRIFT_PAGE_FILE, (str(records_dir), params.against))
    progress.say("find_drift", f"{say_verdict(shifts)}; {new.num_examples:,} examples")
    return DriftResult(not drifted, drifted)


def write_page(new: DataSketch, old: DataSketch, shifts: Sequence[Shift], path: Path, places: tuple[str, str]) -> None:
    """Write the HTML page that shows how two data sets differ.

    Args:
        new: Statistics of the new data.
        old: Statistics of the data to compare with.
        shifts: Differences between the statistics, from `find_shifts`.
        path: File to write.
        places: Folders of new and old records. If they are local, the page shows example images for each drifted
            statistic.
    """
    pairs = figures_of(new, old)
    drifted = [shift.figure for shift in shifts if shift.drifted]
    pictures = [_choose_pictures(place, drifted) for place in places]
    panels = [
        _show(shift, pairs.get(shift.figure, ()), [chosen.get(shift.figure) for chosen in pictures]) for shift in shifts
    ]
    sources = zip(_COLOURS.items(), (new.source, old.source), strict=True)
    legend = draw_legend({f"{name}: {source}": colour for (name, colour), source in sources})
    verdict = say_verdict(shifts)
    rule = f"{say_rule(shifts)} {say_power(new, old, shifts, 'examples')}"
    text = page.render(verdict[0].upper() + verdict[1:], [legend, panels, rule])
    storage.write_bytes(path, text.encode())


def _show(
    shift: Shift, pair: Sequence[Distribution], pictures: Sequence[markupsafe.Markup | None]
) -> markupsafe.Markup:
    """Return a statistic as HTML, with the histograms and the example images of the new and the old data, if any."""
    name = shift.figure.replace("_", " ")
    rows = [_PICTURES.format(*row) for row in zip(_COLOURS.values(), pictures, strict=True) if row[1]]
    return _PANEL.format(
        **{**vars(shift), "measure": shift.measure.capitalize()},
        name=name,
        verdict=", drifted" if shift.drifted else "",
        chart=draw_histograms(name, dict(zip(_COLOURS, pair, strict=True)), _COLOURS) if pair else "",
        pictures=_JOIN(rows),
    )


def _choose_pictures(place: str, figures: Sequence[str]) -> Mapping[str, markupsafe.Markup]:
    """Return example images as HTML, by statistic.

    For each statistic, up to six images are chosen from the first 200 records of a folder, sorted by the statistic.

    Args:
        place: Folder that create_tfrecords wrote. Any other place, such as a registered version, gives no images.
        figures: Names of statistics. Those that are not computed from images are ignored.
    """
    if Location(place).is_remote or parse_reference(place) is not None:
        return {}
    manifest = Manifest.read_from(place)
    if not isinstance(manifest.input, ImageInput):
        return {}
    try:
        keys, pictures = _read(Path(place), manifest, manifest.input)
    except (OSError, InputError, DamagedRecordError, UnreadableImageError):
        return {}  # A comparison does not need the records; they may be moved or damaged.
    measured = measure_pictures([thin_out(picture) for picture in pictures])
    shares = np.linspace(_FROM, _TO, min(_SHOWN, len(pictures)))
    chosen = {}
    for figure, values in zip(FIGURES[IMAGE], measured.T, strict=False):
        if figure.name in figures:
            some = np.argsort(values, kind="stable")[np.rint(shares * (len(values) - 1)).astype(int)].tolist()
            hints = (f"{keys[i]}: {values[i] * figure.scale:.4g}" for i in some)
            chosen[figure.name] = _JOIN(
                show_picture(pictures[i], _PICTURE_PIXELS, keys[i], hint) for i, hint in zip(some, hints, strict=True)
            )
    return chosen


def _read(folder: Path, manifest: Manifest, inputs: ImageInput) -> tuple[list[str], np.ndarray]:
    """Return the keys of the first 200 records, and their images, uint8[N, height, width, channels]."""
    fields: list[dict[str, list[bytes]]] = []
    for shard in itertools.chain.from_iterable(split.shards for split in manifest.splits.values()):
        with contextlib.closing(read_shard(folder, manifest, shard)) as records:
            fields += itertools.islice(records, _MOST_READ - len(fields))
    keys = [own[KEY_FEATURE][0].decode("utf-8", "replace") for own in fields]
    contents = [own[inputs.feature][0] for own in fields]
    if inputs.encoding != RAW:
        return keys, decode_batch(contents, inputs)
    return keys, np.stack([np.frombuffer(content, np.uint8).reshape(inputs.fed_shape) for content in contents])
