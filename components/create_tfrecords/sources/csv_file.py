"""A CSV file, of paths of images or of texts."""

import csv
import dataclasses
import functools
import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from components import storage
from components.artifacts import SPLITS
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.sources.columns import Files
from components.create_tfrecords.sources.listing import Listing, Source, split_named, without_labels
from components.create_tfrecords.targets import index_labels, parse_numbers, shown, split_labels
from components.csv_files import DELIMITERS, find_column, find_delimiter
from components.errors import InputError
from components.identities import identify
from components.interface import IMAGE, MULTI_LABEL, REGRESSION, TEXT
from components.text import MAX_CSV_FIELD_CHARACTERS

_SHOWN_CHARACTERS = 60


@dataclasses.dataclass(frozen=True)
class _Table:
    """A CSV file, its columns by the names that are used here.

    Attributes:
        location: Place of the file.
        version: SHA-256 of the file.
        columns: Names of the columns.
        lines: Number and values of each line.
        notes: Sentences for people on what was taken for what.
    """

    location: str
    version: str
    columns: list[str]
    lines: list[tuple[int, dict[str, str]]]
    notes: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The values of each line."""
        return [row for _, row in self.lines]


def list_csv(location: str, params: WriteParams, labelled: bool = True) -> Listing:
    """List the rows of a CSV file with the columns `path` or `text`, those of the target, and optionally `split`.

    Paths of images are relative to its folder; texts stand in the file itself. The target is `label`: a class, or
    several separated by `|` or none; of a regression `target_columns`, numbers. Without `labelled` none is read.
    """
    table = _read_table(location, params)
    kind = TEXT if "text" in table.columns and "path" not in table.columns else IMAGE
    targets = (params.target_columns or ("label",)) if labelled else ()
    others = dict.fromkeys([*([params.group_column] if params.group_column else []), *params.slice_columns])
    wanted = ["text" if kind == TEXT else "path", *targets, *(others if labelled else ())]
    _check_columns(table, wanted, targets)
    rows = table.rows
    for row in rows:
        for name in {*wanted, "split"} - {"text"}:
            if isinstance(row.get(name), str):
                row[name] = row[name].strip()  # A space that nobody sees makes no other class.
    may_be_empty = {"text", *params.slice_columns} | ({"label"} if params.task == MULTI_LABEL else set())
    filled = [name for name in wanted if name not in may_be_empty]
    root, absolute = _find_root(rows, location) if kind == IMAGE else ("", [])
    keys = _check_lines(table, filled, root if kind == IMAGE else None)
    splits = _read_splits(table, params.group_column) if labelled and "split" in table.columns else None
    if not labelled:
        labels, classes = without_labels(len(keys))
    elif params.task == REGRESSION:
        places = [f"line {number} of {location}" for number, _ in table.lines]
        labels, classes = parse_numbers([[row[name] for name in targets] for row in rows], targets, places), targets
    else:
        read = split_labels if params.task == MULTI_LABEL else index_labels
        labels, classes = read([row["label"] for row in rows], params.class_names, keys)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    texts = tuple(rows[i]["text"].encode() for i in order) if kind == TEXT else None
    hashes = tuple(map(identify, texts)) if texts else None
    return Listing(
        source=params.source,
        keys=tuple(keys[i] for i in order),
        labels=labels[order],
        class_names=classes,
        splits=None if splits is None else splits[order],
        groups=tuple(rows[i][params.group_column] for i in order) if params.group_column else None,
        slices={name: tuple(rows[i][name] for i in order) for name in params.slice_columns if labelled},
        root=root,
        files=_stat_files(root, [keys[i] for i in order]) if kind == IMAGE else None,
        texts=texts,
        kind=kind,
        version=table.version,
        identities=_identities(rows, absolute, hashes, order),
        hashes=hashes,
        notes=table.notes,
    )


def _read_table(location: str, params: WriteParams) -> _Table:
    content = storage.read_bytes(location)
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    try:
        text = content.decode("utf-8-sig")
        delimiter, notes = find_delimiter(text), []
        if delimiter in DELIMITERS:
            notes.append(f"the values of the CSV file are separated by {DELIMITERS[delimiter]}")
        reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
        header = [name.strip() for name in reader.fieldnames or ()]
        columns, renamed = _name_columns(header, params, location)
        reader.fieldnames = columns
        lines = [(reader.line_num, row) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"Cannot read {location}: expected a CSV file in UTF-8, received {error}. Save it as one."
        ) from error
    if not lines:
        raise InputError(
            f"Found no rows in {location}: expected a header line with path and label, or text and label, "
            "and a line per example."
        )
    return _Table(location, hashlib.sha256(content).hexdigest(), columns, lines, (*notes, *renamed))


def _check_columns(table: _Table, wanted: Sequence[str], targets: Sequence[str]) -> None:
    columns = table.columns
    if missing := [name for name in wanted if name not in columns]:
        expected = ", ".join(("path (or text)", *targets))
        raise InputError(
            f"Missing columns in {table.location}: {shown(missing)}. Received: {columns}. The first line must name the "
            f"columns {expected} and optionally split.{_advise_on_columns(columns, missing)}"
        )
    if len(set(columns)) < len(columns):
        raise InputError(
            f"Repeated columns in {table.location}: {columns}. Expected every column once. Rename or remove one."
        )


def _find_root(rows: Sequence[dict[str, str]], location: str) -> tuple[str, list[str]]:
    """Return the folder of the images; and their paths where all were absolute, which then are relative to it."""
    paths = [row["path"] for row in rows]
    if all(path and (path.startswith("/") or storage.is_remote(path)) for path in paths):
        root = storage.common_folder(paths)
        if root is None:
            raise InputError(
                f"Paths of several places in {location}: {_cut(paths[0])!r} and others. Expected all on this machine, "
                "or all in one bucket. Copy the images to one place."
            )
        for row, path in zip(rows, paths, strict=True):
            row["path"] = path.removeprefix(root).lstrip("/")
        return root, paths
    folder, separator, _ = location.rpartition("/")
    return (folder or "/") if separator else ".", []


def _check_lines(table: _Table, filled: Sequence[str], root: str | None) -> list[str]:
    """Check every line; returns a key for each: its path below `root`, or its number where texts have no paths."""
    keys = []
    for number, row in table.lines:
        # A line too short has None as a value, one too long has it as a key.
        # A text may be empty, it is set aside when it is read; and so may several labels.
        if None in row or None in row.values() or not all(row[name] for name in filled):
            raise InputError(
                f"Malformed line {number} of {table.location}: expected values for {table.columns}, received "
                f"{[_cut(value) for value in row.values() if value is not None]}. Correct the line."
            )
        if root is None:
            keys.append(f"line/{number:08d}")
            continue
        try:
            storage.join(root, row["path"])
        except InputError as error:
            raise InputError(f"Line {number} of {table.location}: {error}") from error
        keys.append(str(PurePosixPath(row["path"])))
    if repeated := [key for key, count in Counter(keys).items() if count > 1]:
        raise InputError(
            f"Duplicate paths in {table.location}: {shown(repeated)}. Expected every image once; the same image in two "
            "splits would make the evaluation lie. Remove the repeated lines."
        )
    return keys


def _read_splits(table: _Table, group_column: str) -> np.ndarray:
    """Return the split of every line, str[lines]."""
    rows = table.rows
    if strange := sorted({row["split"] for row in rows if not split_named(row["split"])}):
        raise InputError(f"Unknown splits in {table.location}: {shown(strange)}. Expected {', '.join(SPLITS)}.")
    splits = np.array([split_named(row["split"]) for row in rows])
    if group_column:
        _check_groups([row[group_column] for row in rows], splits.tolist(), table.location)
    return splits


def _stat_files(root: str, paths: Sequence[str]) -> Files:
    """Return the size and version of each file; a missing one is set aside when it is read, like a damaged one."""
    if not storage.is_remote(root):
        return Files.collect(storage.stat_file(root, path) for path in paths)
    known = {file.name: file for file in storage.list_files(root)}
    return Files.collect(known.get(path, storage.StoredFile(path, 0, "missing")) for path in paths)


def _cut(value: Any) -> Any:
    """Return a cell as a message shows it."""
    is_long = isinstance(value, str) and len(value) > _SHOWN_CHARACTERS
    return f"{value[:_SHOWN_CHARACTERS]}… ({len(value):,} characters)" if is_long else value


def _name_columns(cells: Sequence[str], params: WriteParams, location: str) -> tuple[list[str], list[str]]:
    """Return the columns by the names that are used here, and notes on those that were recognised."""
    taken = dict(params.columns)
    if strange := sorted(set(taken.values()) - set(cells)):
        raise InputError(
            f"No columns {shown(strange)} in {location}, which data.columns names. Received: {list(cells)}. Correct it."
        )
    notes = []
    wanted = ["label"] if not params.target_columns else []
    if not {"path", "text"} & {*cells, *taken}:
        wanted += ["path", "text"]
    for name in wanted:
        column = find_column(name, cells)
        if column != name and name not in taken:
            taken[name] = column
            notes.append(f"column {column!r} is taken for the {name}; data.columns may name another one")
    names = {column: name for name, column in taken.items()}
    # A column whose name another one now has is left alone under its own.
    return [names.get(column, f"{column} (unused)" if column in taken else column) for column in cells], notes


def _identities(
    rows: Sequence[Mapping[str, str]], paths: Sequence[str], hashes: Sequence[bytes] | None, order: Sequence[int]
) -> tuple[str, ...] | None:
    """Return what rows are known by: unique ids, else absolute paths, or the texts' content."""
    ids = [str(rows[i].get("id") or "") for i in order]
    if all(ids) and len(set(ids)) == len(ids):
        return tuple(ids)
    if paths:
        return tuple(paths[i] for i in order)
    return tuple(map(bytes.hex, hashes)) if hashes else None


def _advise_on_columns(columns: Sequence[str], missing: Sequence[str]) -> str:
    """Say what may be wrong with a CSV file's first line."""
    alike = {name.lower(): name for name in columns}
    renames = [f"{alike[name]!r} to {name!r}" for name in missing if name in alike]
    return f" Rename {', '.join(renames)}." if renames else f" Or say which they are: data.columns={{{missing[0]}: …}}."


def _check_groups(groups: Sequence[str], splits: Sequence[str], location: str) -> None:
    first: dict[str, str] = {}
    for group, split in zip(groups, splits, strict=True):
        if first.setdefault(group, split) != split:
            raise InputError(
                f"Group {group!r} stands in two splits of {location}: {first[group]} and {split}. Expected every "
                "group in one. Correct the split column, or leave group_column out."
            )


SOURCE = Source(
    "csv:FILE",
    list_csv,
    takes=("task", "group_column", "slice_columns"),
    read_unlabelled=functools.partial(list_csv, labelled=False),
)
