"""Lists and reads the examples to predict, from a source with or without labels, or from create_tfrecords' records."""

import bisect
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import KEY_FEATURE, TEXT_FEATURE, Manifest, Shard
from tpu_components.core.examples.images import middle, read_image
from tpu_components.core.examples.interface import AnyInput, CorpusInput, ImageInput, TextInput
from tpu_components.core.examples.records import RAW, DamagedRecordError, find_records, read_fields
from tpu_components.core.examples.text import Tokenizer
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.columns import Names, pick
from tpu_components.core.sources.kinds import RECORDS, find_source, list_unlabelled
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.tasks import Selection
from tpu_components.predict_batch.params import ANSWER_FIELDS, PredictParams
from tpu_components.serving.exported import ExportedModel


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The examples of a source, in an order that does not depend on the file system.

    Attributes:
        keys: Name of each example. For records, the shard and index of each record, because the name is only in the
            record.
        version: Digest that changes when the content of the source changes.
        select: Function that takes indices, int[…], and returns these examples in the form that is sent to a worker.
        stored: Description of the inputs in the records of a `records:` source, or None for all other sources.
        kept: Values of each example to copy to its prediction, by name: its `id`, and the columns to keep.
        types: Arrow types of these values, by name.
        require_unchanged: Function that raises InputError if the files of the source have changed since the listing.
    """

    keys: Sequence[str]
    version: str
    select: Callable[[np.ndarray], Selection]
    stored: AnyInput | None = None
    kept: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)
    require_unchanged: Callable[[], None] = lambda: None


def list_inputs(params: PredictParams, model: ExportedModel) -> Inputs:
    """List the examples to predict.

    Raises:
        InputError: If the source is unknown, empty or malformed, or has examples that the model does not take.
    """
    if isinstance(model.input, CorpusInput):
        raise InputError(
            f"Cannot predict with the language model {model.name!r}: predict_batch supports only models that return "
            "classes, labels or numbers. To continue a text, use `tpu-pipelines predict`."
        )
    if params.source_ref.kind == RECORDS:
        _check_kept(params, {})
        return _list_records(params.source_ref.place, model)
    find_source(params.source_ref)
    try:
        columns = {**model.columns, **params.columns}
        listing = list_unlabelled(WriteParams(params.source, columns=columns, slice_columns=params.keep))
    except InputError as error:  # Name the parameter of this step instead of a run's configuration.
        message = str(error).replace("data.columns={path: …}", 'columns={"path": "…"}')
        raise InputError(message.replace("data.columns", "columns")) from error
    _check_kept(params, listing.slices)
    if listing.example_kind != model.input.kind:
        raise InputError(
            f"Cannot predict {params.source!r}: the model {model.name!r} expects {model.input.plural}, received a "
            f"source of the kind {listing.example_kind!r}. Use another source."
        )
    own_id = columns.get("id", "id")
    id_name = "id" if own_id in ANSWER_FIELDS else own_id
    kept: dict[str, tuple[str, Sequence[Any]]] = {}
    for name, values in listing.slices.items():
        is_id = name == "id"
        kept.setdefault(id_name if is_id else name, _as_column(_as_numbers(values) if is_id else values))
    return Inputs(
        listing.keys,
        listing.stat_digest(),
        listing.select,
        kept={name: values for name, (_, values) in kept.items()},
        types={name: kind for name, (kind, _) in kept.items()},
        require_unchanged=listing.require_unchanged,
    )


def _check_kept(params: PredictParams, kept: Mapping[str, Any]) -> None:
    wanted = [*params.keep, *(name for name in params.columns if name == "id")]
    if missing := [params.columns.get(name, name) for name in wanted if name not in kept]:
        raise InputError(
            f"Cannot keep {missing[0]!r} of {params.source!r}: expected a column of a csv: or parquet: source, a "
            "feature of tfrecords:, or a field of the JSON files of webdataset:. Remove this name from keep."
        )


def _as_numbers(ids: Sequence[Any]) -> Sequence[Any]:
    """Return IDs as whole numbers if all of them are written as whole numbers, otherwise unchanged.

    If an ID has a leading zero, a plus sign or a space, no ID is converted, so that predictions can be joined with the
    source's table by their IDs.
    """
    if isinstance(ids, Names) and all(re.fullmatch(r"0|-?[1-9]\d{0,17}", text) for text in ids):
        return [int(text) for text in ids]
    return ids


def _as_column(values: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return the Arrow type of a column, and the column's values in this type.

    NaN and infinite values become None. Values of different types become strings.
    """
    if isinstance(values, Names):
        return "string", values
    if any(isinstance(value, bytes) for value in values):
        values = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
    # JSON has no NaN, and Parquet no whole numbers of more than 64 bits.
    values = [None if isinstance(value, float) and not math.isfinite(value) else value for value in values]
    kinds = {type(value) for value in values if value is not None}
    is_large = kinds == {int} and any(value is not None and abs(value) >= 2**63 for value in values)
    name = {int: "int64", float: "double", bool: "bool"}.get(kinds.pop(), "") if len(kinds) == 1 else ""
    if name and not is_large:
        return name, values
    return "string", [None if value is None else str(value) for value in values]


def _list_records(place: Location, model: ExportedModel) -> Inputs:
    place = place.folder
    manifest = Manifest.read_from(place) if place.is_remote else Manifest.load(Path(place), verify=False)
    if manifest.input.kind != model.input.kind:
        raise InputError(
            f"Cannot predict {place}: the model {model.name!r} expects {model.input.plural}, received "
            f"{manifest.input.plural}. Use another source."
        )
    if manifest.feature_names or any(
        shard.path(place) == shard.name for split in manifest.splits.values() for shard in split.shards
    ):
        raise InputError(
            f"Cannot predict {place}: it contains no records, but refers to records that another program wrote. Use "
            "those records as the source: "
            f"{manifest.source}"
        )
    places = RecordPlaces(shard for split in manifest.splits.values() for shard in split.shards)
    return Inputs(
        places,
        manifest.fingerprint,
        lambda some: Selection(place, pick(places, some), contents=None, values=[]),
        stored=manifest.input,
    )


class Example(NamedTuple):
    """An example to predict.

    Attributes:
        name: Name of the example.
        value: Model input, dtype[*shape].
        losses: Content that the image loses when it is converted; see `Picture.losses`.
    """

    name: str
    value: np.ndarray
    losses: Mapping[str, int] = {}


def read_inputs(model: ExportedModel, stored: AnyInput | None, examples: Selection) -> Iterator[Example | Exception]:
    """Yield each example with its model input, or the error if the example cannot be used.

    Args:
        model: The model.
        stored: See `Inputs`.
        examples: The examples to read.
    """
    if stored is not None:  # Records are read in large pieces, so threads would not help.
        examples = dataclasses.replace(examples, root="", contents=read_frames(examples.root, examples.keys))
    return examples.read_each(functools.partial(read_input, model, stored))


def read_input(model: ExportedModel, stored: AnyInput | None, key: str, content: Any) -> Example:
    """Convert the content of an example to a model input. Return the example.

    Raises:
        InputError, UnreadableError: If the example cannot be used. The message is the reason.
    """
    return _read_example(model, key, content) if stored is None else _read_record(model, content, stored)


def _read_record(model: ExportedModel, frame: bytes, stored: AnyInput) -> Example:
    fields = read_fields(frame)
    try:
        key = fields[KEY_FEATURE][0].decode()
        if isinstance(stored, TextInput):  # Read the text: the model may have another vocabulary.
            return _read_example(model, key, fields[TEXT_FEATURE][0])
        assert isinstance(stored, ImageInput)
        content = fields[ImageInput.feature][0]
        if stored.encoding == RAW:
            pixels = np.frombuffer(content, np.uint8).reshape(stored.fed_shape)
        else:
            pixels = read_image(content, stored.stored_rule).pixels
        return _read_example(model, key, np.ascontiguousarray(middle(pixels[None], stored.shape)[0]))
    except InputError:  # An InputError is a ValueError, too.
        raise
    except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
        raise DamagedRecordError(f"not a record of create_tfrecords: {error!r}") from error


def _read_example(model: ExportedModel, key: str, content: Any) -> Example:
    """Read a text, an image file or an element of an array in the same way as for training."""
    if isinstance(model.reader, Tokenizer):
        return Example(key, model.reader.encode_stored(content).ids)
    assert isinstance(model.input, ImageInput)
    picture = read_image(content, model.input.rule)
    return Example(key, picture.pixels, picture.losses)


class RecordPlaces(Sequence[str]):
    """A sequence of the places (`SHARD[INDEX]`) of all records in some shards, in order.

    A place is computed when it is accessed, so only the list of shards is in memory.

    Args:
        shards: The shards.

    Example:
        >>> places = RecordPlaces([Shard("train-0", 2, 0, ""), Shard("train-1", 3, 0, "")])
        >>> len(places), places[1], places[4]
        (5, 'train-0[1]', 'train-1[2]')
    """

    def __init__(self, shards: Iterable[Shard]) -> None:
        self._shards = tuple(shards)
        self._ends = list(itertools.accumulate(shard.num_examples for shard in self._shards))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, place: Any) -> Any:
        shard = self._shards[number := bisect.bisect_right(self._ends, place)]
        return f"{shard.name}[{place - self._ends[number] + shard.num_examples}]"


def read_frames(root: str, places: Iterable[str]) -> Iterator[bytes]:
    """Yield the records at given places, each with its TFRecord frame.

    Only a few megabytes of a shard are kept in memory.

    Args:
        root: Folder of the shards, local or in a bucket.
        places: Places of records, in the order and format of `RecordPlaces`.

    Raises:
        InputError: If a shard is missing, damaged, or has fewer records than its manifest says.
    """
    split = ((name, int(number)) for name, _, number in (place[:-1].rpartition("[") for place in places))
    for name, group in itertools.groupby(split, key=lambda place: place[0]):
        yield from _read(f"{root}/{name}", [number for _, number in group])


def _read(path: str, numbers: Sequence[int]) -> Iterator[bytes]:
    """Yield the records of a shard with the given numbers, which are in ascending order."""
    with storage.open_file(path) as file:
        spans = find_records(file)
        following = 0
        for number in numbers:
            try:
                offset, num_bytes = next(itertools.islice(spans, number - following, None))
            except StopIteration:
                raise InputError(
                    f"Cannot read {path}: expected {numbers[-1] + 1:,} records or more, as its manifest says, received "
                    "fewer. Write the records again."
                ) from None
            except DamagedRecordError as error:
                raise InputError(f"Cannot read {path}: {error}. Write the records again.") from error
            file.seek(offset)
            yield file.read(num_bytes)
            following = number + 1
