"""Parquet files with images or texts, and data sets of the Hugging Face hub.

The supported Parquet files are those that Hugging Face and BigQuery write.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.names import as_nfc, by_nfc
from tpu_components.core.examples.class_names import class_name
from tpu_components.core.examples.example_ids import identify_each
from tpu_components.core.examples.interface import REGRESSION
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location, Scheme
from tpu_components.core.files.typed_json import decode
from tpu_components.core.files.unpacking import SMALL_BYTES, require_plausible
from tpu_components.core.sources.containers import Container, list_containers, splits_of, stored_files, version_of
from tpu_components.core.sources.fields import choose_fields, list_rows, read_ids
from tpu_components.core.sources.listing import Listing, Source, split_named
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import LaterSpans, Spans, copy_contents
from tpu_components.core.work.workers import in_threads

_EMBED = (
    "Write the bytes of the image files into the table, with Hugging Face `datasets`: "
    "`dataset.with_format('arrow').map(datasets.table.embed_table_storage, batched=True)`. Or list paths and labels "
    "in a CSV file, and use csv:FILE."
)
_MOST_ROWS_AT_ONCE = 1024
_WITHHELD = -1  # Class index that Hugging Face `datasets` writes for an example without a label.
_VALUE_BYTES = 64  # Least memory for a value with its key, however few bits it has in the file.


def _unpack(files: Sequence[Container], column: str) -> Spans:
    """Copy the images of Parquet files to a temporary file, and return their byte ranges in it.

    The file is removed when the returned `Spans` are garbage-collected.

    Parquet compresses rows in groups, but records are written in a different order. Without the copy, a group would be
    decompressed for nearly every image.
    """
    contents = itertools.chain.from_iterable(_column_of(file, column) for file in files)
    spans = copy_contents(contents, sum(file.num_bytes for file in files))
    if not spans.sizes.any():
        raise _without_bytes(files, column)
    return spans


def _without_bytes(files: Sequence[Container], column: str) -> InputError:
    """Return the error for an image column without bytes in any row."""
    value = next(_values_of(files[0], column), None)
    path = value.get("path") if isinstance(value, dict) else None
    received = f"only paths (the first: {path!r})" if path else "only empty values"
    return InputError(
        f"Cannot use the column {column!r} of {files[0].path}: expected the bytes of image files, received {received}. "
        f"{_EMBED}"
    )


def _column_of(file: Container, column: str) -> Iterator[bytes]:
    """Yield the images in a column of bytes, or in a column of Hugging Face's images. Yield b"" for a missing image."""
    for value in _values_of(file, column):
        content = value.get("bytes") if isinstance(value, dict) else value
        yield content if isinstance(content, bytes) else b""


def _values_of(file: Container, column: str) -> Iterator[Any]:
    """Yield the values of a column, a few rows at a time.

    Parquet stores a repeated value only once, so neither the header nor the file size limits the size of a column.
    Therefore, sizes are counted while reading. If values may repeat, every row may contain the largest value, so fewer
    rows are read at a time.

    Raises:
        InputError: If the file is damaged, or unpacks to more than `require_plausible` allows.
    """
    with _opened(file) as table:
        column = by_nfc(table.schema_arrow.names).get(column, column)
        largest, least, unpacked, count = 1, 0, 0, 0
        for num_bytes, num_values, may_repeat in _groups_of(table, column):
            largest = max(largest, num_bytes * may_repeat)
            least += max(num_bytes, num_values * _VALUE_BYTES)
            require_plausible(file.path, file.num_bytes, least)
        # Arrow's buffers double as they grow, so that a batch takes up to twice its size.
        num_rows = min(max(SMALL_BYTES // (2 * largest), 1), _MOST_ROWS_AT_ONCE)
        for batch in table.iter_batches(num_rows, columns=[column]):
            values = _decoded(batch.column(0))
            count += len(values)
            unpacked += values.nbytes
            require_plausible(file.path, file.num_bytes, unpacked)
            yield from (value.as_py() for value in values)
            del batch, values  # Frees them before the next ones are read.
        if count != table.metadata.num_rows:
            raise ValueError(f"{count:,} rows, although its footer says {table.metadata.num_rows:,}")


def _decoded(values: Any) -> Any:
    """Convert values of a categorical column to plain values. Other values are returned unchanged.

    Without the conversion, every batch would contain all categories of the column.
    """
    import pyarrow.types as types

    return values.dictionary_decode() if types.is_dictionary(values.type) else values


def _groups_of(table: Any, column: str) -> Iterator[tuple[int, int, bool]]:
    """Yield (uncompressed bytes, number of the column's values, whether values may repeat) for every row group.

    Repeated values may take more memory than the uncompressed bytes of the row group. Column headers are read only for
    lists, because some damaged headers crash the process in pyarrow 26.
    """
    leaves = [(i, table.schema.column(i)) for i in range(len(table.schema))]
    own = [(i, leaf) for i, leaf in leaves if leaf.path.partition(".")[0] == column]
    for number in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(number)
        counts = [group.column(i).num_values if leaf.max_repetition_level else group.num_rows for i, leaf in own]
        # A wide value of fixed width counts as several values of `_VALUE_BYTES`.
        widths = [-(-leaf.length // _VALUE_BYTES) or 1 for _, leaf in own]
        yield (
            group.total_byte_size,
            max((count * width for count, width in zip(counts, widths, strict=True)), default=0),
            any(leaf.physical_type == "BYTE_ARRAY" or leaf.max_repetition_level for _, leaf in own),
        )


@contextlib.contextmanager
def _opened(file: Container) -> Iterator[Any]:
    """Open a Parquet file. Raise InputError if it is damaged."""
    import pyarrow
    import pyarrow.parquet

    # pyarrow raises OSError for damaged pages, ValueError for texts that are not UTF-8 and dates beyond Python's.
    errors = (pyarrow.ArrowException, OSError, ValueError, OverflowError)
    with (
        reading(file.path, "a complete Parquet file", "Write the file again.", *errors),
        storage.open_file(file.path) as content,
        pyarrow.parquet.ParquetFile(content) as table,
    ):
        yield table


def list_parquet(location: Location, params: WriteParams, labelled: bool) -> Listing:
    """List the rows of Parquet files. Texts are kept in memory.

    Images without an ID are read once, because they are identified by a hash of their content.
    """
    files = list_containers(location, (".parquet",))
    return _list_tables(files, splits_of(files, location, params.split_files) if labelled else None, params, labelled)


class HubDataSet(NamedTuple):
    """A data set of the Hugging Face hub.

    Attributes:
        name: Name of the data set, `OWNER/NAME`.
        config: Configuration of the data set. Empty for the only or the default configuration.
    """

    name: str
    config: str

    @classmethod
    def parse(cls, place: str) -> Self:
        """Parse `OWNER/NAME` or `OWNER/NAME:CONFIG`."""
        name, _, config = place.partition(":")
        return cls(name, config)

    @property
    def folder(self) -> Location:
        """Folder with the Parquet files."""
        return Location(f"{Scheme.HUGGING_FACE}datasets/{self.name}@refs/convert/parquet")


def list_hub(location: Location, params: WriteParams, labelled: bool) -> Listing:
    """List the rows of a data set of the Hugging Face hub, `OWNER/NAME` or `OWNER/NAME:CONFIG`.

    The hub also stores every public data set as Parquet, in files `CONFIG/SPLIT/0000.parquet` of a separate branch:
    https://huggingface.co/docs/dataset-viewer/parquet. Splits other than train, validation and test are left out, and
    so are splits whose labels are not public.

    Raises:
        InputError: If the data set or the configuration does not exist, or if none of the splits can be used.
    """
    data_set = HubDataSet.parse(location)
    files = list_containers(data_set.folder, (".parquet",))
    configs = sorted({file.name.split("/")[0] for file in files})
    config = data_set.config or (configs[0] if len(configs) == 1 else "default")
    if config not in configs:
        raise InputError(
            f"Cannot use {params.source!r}: expected one of its configurations, {quoted(configs)}, received "
            f"{config!r}. Write huggingface:{data_set.name}:{configs[0]}."
        )
    by_split: dict[str, list[Container]] = {}
    for file in files:
        if file.name.startswith(f"{config}/"):
            by_split.setdefault(file.name.split("/")[1], []).append(file)
    notes = []
    chosen = list[Container]()
    splits = list[str]()
    for split, of_split in by_split.items():
        known = split_named(split.removeprefix("partial-"))
        if labelled and (not known or _is_unlabelled(of_split, params)):
            reason = "it has no labels" if known else "it is not a training, validation or test split"
            notes.append(f"the split {split!r} is left out, because {reason}")
            continue
        if split.startswith("partial-"):
            notes.append(f"the hub has only a part of the split {split!r} as Parquet")
        chosen = chosen + of_split
        splits = splits + [known or split] * len(of_split)
    if not chosen:
        raise InputError(
            f"Cannot use {params.source!r}: expected a train, validation or test split with labels, received "
            f"{quoted(sorted(by_split))}. Choose another configuration: {quoted(configs)}."
        )
    return _list_tables(chosen, splits if labelled else None, params, labelled, notes)


def _is_unlabelled(files: Sequence[Container], params: WriteParams) -> bool:
    """Return whether the labels of a split are withheld: every label is the class index -1."""
    with _opened(files[0]) as table:
        schema = table.schema_arrow
    chosen = choose_fields([*map(as_nfc, schema.names)], params, files[0].path)
    label = chosen.targets[0]
    return label in _class_names(schema) and all(
        value == _WITHHELD for file in files for value in _values_of(file, label)
    )


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Return {column: class names} for columns of class indices, from the metadata of the package `datasets`.

    Format: https://github.com/huggingface/datasets/blob/main/src/datasets/arrow_writer.py, `_build_metadata`. The
    format of a list of class indices has changed twice.
    """
    try:
        features = decode((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        classes = {}
        for column, feature in features.items():
            inner = feature[0] if isinstance(feature, list) and len(feature) == 1 else feature
            inner = inner.get("feature") or inner
            if inner.get("_type") == "ClassLabel":
                classes[as_nfc(column)] = [str(name) for name in inner["names"]]
    except (ValueError, AttributeError, KeyError, TypeError):  # Written by something else.
        return {}
    return classes


def _named(value: Any, names: Sequence[str]) -> Any:
    """Return the name of a class index, or the names of a list of indices. Return None for an unknown index."""
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else None


class _Columns(NamedTuple):
    """Columns of a file.

    Attributes:
        num_rows: Number of rows in the file.
        values: Values of each column.
        class_names: Names of the class indices in a column, from the file's metadata.
    """

    num_rows: int
    values: dict[str, list[Any]]
    class_names: Mapping[str, list[str]]


def _list_tables(
    files: Sequence[Container],
    of_files: Sequence[str] | None,
    params: WriteParams,
    labelled: bool,
    notes: Sequence[str] = (),
) -> Listing:
    """List the rows of Parquet files.

    `of_files` is the split of each file, or None for files without splits. `notes` are added to the listing.
    """
    import pyarrow.types as types

    with _opened(files[0]) as table:
        schema = table.schema_arrow
    chosen = choose_fields([*map(as_nfc, schema.names)], params, files[0].path, labelled)
    column = chosen.names[chosen.content]
    is_text = chosen.content == "text"
    kind = schema.field(by_nfc(schema.names)[column]).type
    of_texts = (types.is_string, types.is_large_string, types.is_string_view)
    of_images = (types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary, _has_bytes)
    value_kind = kind.value_type if types.is_dictionary(kind) else kind  # Texts of pandas may be categorical.
    if not any(fit(value_kind) for fit in (of_texts if is_text else of_images)):
        raise InputError(
            f"Cannot use the column {column!r} of {files[0].path}: expected "
            f"{'strings' if is_text else 'the bytes of '}{'' if is_text else 'image files'}, received {kind}. Name "
            "another column in "
            f"data.columns.{'' if is_text or not _has_paths(kind) else f' If the column contains paths: {_EMBED}'}"
        )
    by_file = list(in_threads(functools.partial(_read_columns, names=chosen.wanted), files[0].path, files))
    counts = [read.num_rows for read in by_file]
    order = params.class_names
    if params.task != REGRESSION:
        for name in chosen.targets:
            order = _name_labels(name, by_file, files, params.class_names) or order
    values = {name: [value for read in by_file for value in read.values[name]] for name in chosen.wanted}
    keys = tuple(f"{file.name}[{i}]" for file, count in zip(files, counts, strict=True) for i in range(count))
    if not keys:
        raise InputError(f"Found no rows in {params.source}: expected one row for each example. Check the path.")
    texts = tuple((text or "").encode() for file in files for text in _values_of(file, column)) if is_text else None
    hashes = identify_each(texts) if texts else None

    def identify() -> np.ndarray:
        if hashes is not None:
            return hashes
        # Row numbers do not identify images: BigQuery exports rows in a different order each time.
        hashed = [*in_threads(lambda file: identify_each(_column_of(file, column)), files[0].path, files)]
        of_images = np.concatenate(hashed)
        if np.all(of_images == identify_each([b""])):
            raise _without_bytes(files, column)
        return of_images

    ids = read_ids(values, chosen)
    is_identified = not is_text and (not labelled or bool(ids and all(ids)))
    paths, num_bytes = tuple(file.path for file in files), sum(file.num_bytes for file in files)
    return list_rows(
        values,
        dataclasses.replace(chosen, params=dataclasses.replace(params, class_names=order)),
        keys,
        splits=None if of_files is None else np.repeat(of_files, counts),
        identify=None if is_identified else identify,
        texts=texts,
        spans=None if is_text else LaterSpans(paths, num_bytes, len(keys), functools.partial(_unpack, files, column)),
        containers=stored_files(files),
        version=version_of(files),
        notes=(*notes, *chosen.notes),
        hashes=hashes,
    )


def _name_labels(
    name: str, by_file: Sequence[_Columns], files: Sequence[Container], class_names: Sequence[str]
) -> tuple[str, ...]:
    """Replace the class indices in a column of `by_file` with the names from each file's own metadata.

    Args:
        name: Name of the column.
        by_file: The columns of each file.
        files: The files.
        class_names: The classes that the user lists. If they are numbers, the labels stay numbers.

    Returns:
        The labels that occur: names in the order of their indices, then other texts. () if no file names its class
        indices, or if the labels stay numbers.

    Raises:
        InputError: If only some of the files name their class indices, or if files name them differently and
            `class_names` are numbers.
    """
    lists = [read.class_names.get(name) for read in by_file]
    known = [names for names in lists if names]
    if not known:
        return ()
    if class_names and not any({*map(class_name, names)} & {*class_names} for names in known):
        if odd := next((file for file, names in zip(files, lists, strict=True) if names != lists[0]), None):
            raise InputError(
                f"{odd.path} and {files[0].path} have different names for the class indices in {name!r}, so numbers in "
                f"data.class_names are ambiguous. List names such as {quoted(known[0])} in data.class_names instead."
            )
        for read in by_file:
            read.values[name] = [None if value == _WITHHELD else value for value in read.values[name]]
        return ()
    occurring = set[str]()
    for read, names, file in zip(by_file, lists, files, strict=True):
        if names:
            read.values[name] = [_named(value, names) for value in read.values[name]]
        for value in read.values[name]:
            for label in value if isinstance(value, list) else [value]:
                if isinstance(label, int):
                    raise InputError(
                        f"The labels in {name!r} of {file.path} are numbers without names, but the metadata of other "
                        f"files names the classes: {quoted(known[0])}. Save all files with the same datasets.Features."
                    )
                if isinstance(label, str):
                    occurring.add(label)
    ordered = dict.fromkeys(each for names in known for each in names if each in occurring)
    return tuple(dict.fromkeys(map(class_name, [*ordered, *sorted(occurring - ordered.keys())])))


def _has_bytes(kind: Any) -> bool:
    """Return whether a column type is that of Hugging Face's images: a struct with a field `bytes`."""
    import pyarrow.types as types

    return types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _has_paths(kind: Any) -> bool:
    """Return whether a column of this type may contain paths: strings, or a struct with a field `path`."""
    import pyarrow.types as types

    is_text = types.is_string(kind) or types.is_large_string(kind)
    return is_text or (types.is_struct(kind) and kind.get_field_index("path") >= 0)


def _read_columns(file: Container, names: Sequence[str]) -> _Columns:
    """Read the values of the columns in `names`, and the names that the file's metadata give to class indices.

    Raises:
        InputError: If the file is damaged, or lacks columns of the first file.
    """
    with _opened(file) as table:
        if missing := [name for name in names if name not in by_nfc(table.schema_arrow.names)]:
            raise InputError(
                f"Missing columns in {file.path}: {quoted(missing)}. Expected the same columns as in the first file. "
                "Correct this file."
            )
        num_rows = table.metadata.num_rows
        class_names = _class_names(table.schema_arrow)
    require_plausible(file.path, file.num_bytes, num_rows * _VALUE_BYTES)
    return _Columns(num_rows, {name: list(_values_of(file, name)) for name in names}, class_names)


SOURCE = Source("parquet:GLOB", list_parquet, suffixes=(".parquet",), takes=("task", "columns", "split_files"))
HUB = Source("huggingface:OWNER/NAME[:CONFIG]", list_hub, takes=("task", "columns"))
