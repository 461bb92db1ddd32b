"""A CSV file, of paths of images or of texts."""

import csv
import hashlib
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from components import storage
from components.artifacts import SPLITS
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.sources.listing import Listing, Source, split_named
from components.create_tfrecords.targets import index_labels, parse_numbers, shown, split_labels
from components.csv_files import DELIMITERS, find_column, find_delimiter
from components.errors import InputError
from components.identities import identify
from components.interface import IMAGE, MULTI_LABEL, REGRESSION, TEXT
from components.text import MAX_CSV_FIELD_CHARACTERS

_SHOWN_CHARACTERS = 60


def list_csv(location: str, params: WriteParams) -> Listing:
    """A CSV file with the columns `path` or `text`, those of the target, and optionally `split`.

    Paths of images are relative to its folder; texts stand in the file itself. The target is `label`: a class, or
    several separated by `|` or none; of a regression `target_columns`, numbers.
    """
    content = storage.read_bytes(location)
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    folder, separator, _ = location.rpartition("/")
    root = (folder or "/") if separator else "."
    try:
        text = content.decode("utf-8-sig")
        delimiter, notes = find_delimiter(text), []
        if delimiter in DELIMITERS:
            notes.append(f"the values of the CSV file are separated by {DELIMITERS[delimiter]}")
        reader = csv.DictReader(io.StringIO(text), delimiter=delimiter)
        found = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames, renamed = _name_columns(found, params, location)
        notes += renamed
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
    columns = list(reader.fieldnames or ())
    kind = TEXT if "text" in columns and "path" not in columns else IMAGE
    targets = params.target_columns or ("label",)
    wanted = ["text" if kind == TEXT else "path", *targets] + ([params.group_column] if params.group_column else [])
    if missing := [name for name in wanted if name not in columns]:
        raise InputError(
            f"Missing columns in {location}: {shown(missing)}. Received: {columns}. The first line must name the "
            f"columns path (or text), {', '.join(targets)} and optionally split.{_advise_on_columns(columns, missing)}"
        )
    if len(set(columns)) < len(columns):
        raise InputError(
            f"Repeated columns in {location}: {columns}. Expected every column once. Rename or remove one."
        )
    rows = [row for _, row in lines]
    for row in rows:
        for name in {*wanted, "split"} - {"text"}:
            if isinstance(row.get(name), str):
                row[name] = row[name].strip()  # A space that nobody sees makes no other class.
    may_be_empty = {"text", "label"} if params.task == MULTI_LABEL else {"text"}
    filled = [name for name in wanted if name not in may_be_empty]
    paths: list[str] = []
    wherever: list[str] = [row["path"] for row in rows] if kind == IMAGE and "path" in columns else []
    if wherever and all(path and (path.startswith("/") or storage.is_remote(path)) for path in wherever):
        root = _common_folder(wherever, location)
        for row, path in zip(rows, wherever, strict=True):
            row["path"] = path.removeprefix(root).lstrip("/")
    else:
        wherever = []
    for number, row in lines:
        # A line too short has None as a value, one too long has it as a key.
        # A text may be empty, it is set aside when it is read; and so may several labels.
        if None in row or None in row.values() or not all(row[name] for name in filled):
            raise InputError(
                f"Malformed line {number} of {location}: expected values for {columns}, received "
                f"{[_cut(value) for value in row.values() if value is not None]}. Correct the line."
            )
        if kind == TEXT:
            paths.append(f"line/{number:08d}")
            continue
        try:
            storage.join(root, row["path"])
        except InputError as error:
            raise InputError(f"Line {number} of {location}: {error}") from error
        paths.append(str(PurePosixPath(row["path"])))
    if repeated := [path for path, count in Counter(paths).items() if count > 1]:
        raise InputError(
            f"Duplicate paths in {location}: {shown(repeated)}. Expected every image once; the same image in two "
            "splits would make the evaluation lie. Remove the repeated lines."
        )
    splits = None
    if "split" in columns:
        if strange := sorted({row["split"] for row in rows if not split_named(row["split"])}):
            raise InputError(f"Unknown splits in {location}: {shown(strange)}. Expected {', '.join(SPLITS)}.")
        splits = np.array([split_named(row["split"]) for row in rows])
        if params.group_column:
            _check_groups([row[params.group_column] for row in rows], splits.tolist(), location)
    if params.task == REGRESSION:
        places = [f"line {number} of {location}" for number, _ in lines]
        labels, classes = parse_numbers([[row[name] for name in targets] for row in rows], targets, places), targets
    else:
        read = split_labels if params.task == MULTI_LABEL else index_labels
        labels, classes = read([row["label"] for row in rows], params.class_names, paths)
    order = sorted(range(len(paths)), key=paths.__getitem__)
    texts = tuple(rows[i]["text"].encode() for i in order) if kind == TEXT else None
    hashes = tuple(map(identify, texts)) if texts else None
    files: dict[str, storage.StoredFile] = {}
    if kind == TEXT:
        pass
    elif storage.is_remote(root):
        known = {file.name: file for file in storage.list_files(root)}
        # A file that is missing is quarantined when it is read, like one that is damaged.
        files = {path: known.get(path, storage.StoredFile(path, 0, "missing")) for path in paths}
    else:
        files = {path: storage.stat_file(root, path) for path in paths}
    return Listing(
        source=params.source,
        keys=tuple(paths[i] for i in order),
        labels=labels[order],
        class_names=classes,
        splits=None if splits is None else splits[order],
        groups=tuple(rows[i][params.group_column] for i in order) if params.group_column else None,
        root=root if kind == IMAGE else "",
        files=files,
        texts=texts,
        kind=kind,
        version=hashlib.sha256(content).hexdigest(),
        identities=_identities(rows, wherever, hashes, order),
        hashes=hashes,
        notes=tuple(notes),
    )


def _cut(value: Any) -> Any:
    """A cell as a message shows it."""
    is_long = isinstance(value, str) and len(value) > _SHOWN_CHARACTERS
    return f"{value[:_SHOWN_CHARACTERS]}… ({len(value):,} characters)" if is_long else value


def _name_columns(found: Sequence[str], params: WriteParams, location: str) -> tuple[list[str], list[str]]:
    """The columns by the names that are used here, and notes on those that are taken for what their names suggest."""
    taken = dict(params.columns)
    if strange := sorted(set(taken.values()) - set(found)):
        raise InputError(
            f"No columns {shown(strange)} in {location}, which data.columns names. Received: {list(found)}. Correct it."
        )
    notes = []
    wanted = ["label"] if not params.target_columns else []
    if not {"path", "text"} & {*found, *taken}:
        wanted += ["path", "text"]
    for name in wanted:
        column = find_column(name, found)
        if column != name and name not in taken:
            taken[name] = column
            notes.append(f"column {column!r} is taken for the {name}; data.columns may name another one")
    names = {column: name for name, column in taken.items()}
    # A column whose name another one now has is left alone under its own.
    return [names.get(column, f"{column} (unused)" if column in taken else column) for column in found], notes


def _common_folder(paths: Sequence[str], location: str) -> str:
    """The folder, here or in one bucket, that holds all of some absolute paths."""
    if len({tuple(path.split("/")[:3]) if storage.is_remote(path) else "" for path in paths}) > 1:
        raise InputError(
            f"Paths of several places in {location}: {_cut(paths[0])!r} and others. Expected all on this machine, or "
            "all in one bucket. Copy the images to one place."
        )
    scheme = "".join(paths[0].partition("://")[:2]) if storage.is_remote(paths[0]) else ""
    folder = os.path.commonpath([os.path.dirname(path.removeprefix(scheme)) for path in paths])
    return f"{scheme}{folder}"


def _identities(
    rows: Sequence[Mapping[str, str]], paths: Sequence[str], hashes: Sequence[bytes] | None, order: Sequence[int]
) -> tuple[str, ...] | None:
    """What rows are known by: an id where there is one and none repeats; else an absolute path, or a text's content."""
    ids = [str(rows[i].get("id") or "") for i in order]
    if all(ids) and len(set(ids)) == len(ids):
        return tuple(ids)
    if paths:
        return tuple(paths[i] for i in order)
    return tuple(map(bytes.hex, hashes)) if hashes else None


def _advise_on_columns(columns: Sequence[str], missing: Sequence[str]) -> str:
    """What may be wrong with a CSV file's first line."""
    alike = {name.lower(): name for name in columns}
    found = [f"{alike[name]!r} to {name!r}" for name in missing if name in alike]
    return f" Rename {', '.join(found)}." if found else f" Or say which they are: data.columns={{{missing[0]}: …}}."


def _check_groups(groups: Sequence[str], splits: Sequence[str], location: str) -> None:
    first: dict[str, str] = {}
    for group, split in zip(groups, splits, strict=True):
        if first.setdefault(group, split) != split:
            raise InputError(
                f"Group {group!r} stands in two splits of {location}: {first[group]} and {split}. Expected every "
                "group in one. Correct the split column, or leave group_column out."
            )


SOURCE = Source("csv:FILE", list_csv, takes=("task", "group_column"))
