"""Example images of records for a page, sorted by a statistic such as brightness."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.examples.artifacts import KEY_FEATURE, Manifest
from tpu_components.core.examples.decoding import decode_batch
from tpu_components.core.examples.images import UnreadableImageError
from tpu_components.core.examples.interface import IMAGE, ImageInput
from tpu_components.core.examples.records import RAW, DamagedRecordError, read_fields, read_frames
from tpu_components.core.files import storage
from tpu_components.core.registry.opening import parse_reference
from tpu_components.create_tfrecords.copies import thin_out
from tpu_components.create_tfrecords.data_page import thumbnail
from tpu_components.create_tfrecords.measuring import FIGURES, measure_pictures

_MOST_READ, _SHOWN = 200, 6
_FROM, _TO = 0.05, 0.95  # Quantiles of the first and the last image that are shown.


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image for a page: name, value of the statistic, and the image as a `data:` URI."""

    key: str
    value: float
    address: str


def choose_pictures(place: str, figures: Sequence[str]) -> Mapping[str, tuple[Picture, ...]]:
    """Return example images of a local folder's first records, by statistic.

    Args:
        place: Folder that create_tfrecords wrote. Any other place, such as a registered version, gives no images.
        figures: Names of statistics. Those that are not computed from images are ignored.
    """
    places = {figure.name: i for i, figure in enumerate(FIGURES[IMAGE])}
    if storage.is_remote(place) or parse_reference(place) is not None:
        return {}
    manifest = Manifest.read_from(place)
    if not isinstance(manifest.input, ImageInput):
        return {}
    try:
        keys, pictures = _read(Path(place), manifest, manifest.input)
    except (OSError, DamagedRecordError, UnreadableImageError):
        return {}  # A comparison does not need the records; they may be moved or damaged.
    measured = measure_pictures([thin_out(picture) for picture in pictures])
    chosen = {}
    for name in figures:
        if name in places and places[name] < measured.shape[1]:
            scale, values = FIGURES[IMAGE][places[name]].scale, measured[:, places[name]]
            shares = np.linspace(_FROM, _TO, min(_SHOWN, len(values)))
            some = np.argsort(values, kind="stable")[np.rint(shares * (len(values) - 1)).astype(int)].tolist()
            chosen[name] = tuple(Picture(keys[i], float(values[i] * scale), thumbnail(pictures[i])) for i in some)
    return chosen


def _read(folder: Path, manifest: Manifest, inputs: ImageInput) -> tuple[list[str], np.ndarray]:
    """Return the names of the first records, and their images, uint8[N, height, width, channels]."""
    fields = list(itertools.islice(_records(folder, manifest), _MOST_READ))
    keys = [own[KEY_FEATURE][0].decode("utf-8", "replace") for own in fields]
    contents = [own[inputs.feature][0] for own in fields]
    if inputs.encoding != RAW:
        return keys, decode_batch(contents, inputs)
    return keys, np.stack([np.frombuffer(content, np.uint8).reshape(inputs.fed_shape) for content in contents])


def _records(folder: Path, manifest: Manifest) -> Iterator[dict[str, list[bytes]]]:
    """Yield the fields of every record, in stored order."""
    for shard in itertools.chain.from_iterable(split.shards for split in manifest.splits.values()):
        with open(folder / shard.name, "rb") as file:
            yield from (read_fields(frame) for frame, _ in read_frames(file))
