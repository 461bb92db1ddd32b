"""Where examples come from: every source becomes one list of keys, labels and, where it has them, splits and groups."""

import csv
import dataclasses
import gzip
import hashlib
import io
import os
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from components import storage
from components.artifacts import SPLITS, TEST, TRAIN, VALIDATION
from components.create_tfrecords.corpus import Corpus, list_passages, read_corpus
from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.targets import (
    check_finite,
    check_hot,
    index_labels,
    parse_numbers,
    shown,
    split_labels,
)
from components.csv_files import DELIMITERS, find_column, find_delimiter
from components.errors import InputError, did_you_mean
from components.identities import identify
from components.images import has_image_suffix
from components.interface import CLASSIFICATION, IMAGE, MULTI_LABEL, REGRESSION, TEXT
from components.text import MAX_CSV_FIELD_CHARACTERS

_REMOTE_THREADS = 16
_SPLIT_NAMES = {TRAIN: ("train", "training"), VALIDATION: ("validation", "valid", "val"), TEST: ("test", "testing")}


@dataclasses.dataclass(frozen=True)
class Listing:
    """The examples of a source, in a canonical order that does not depend on the file system.

    Attributes:
        source: The source, as the user wrote it.
        keys: One unique name per example: its path below `root`, or its place in an array.
        labels: int32[num_examples], indices into `class_names`; of other tasks, see `targets`.
        class_names: The classes; of a regression, the names of the targets.
        splits: The source's own split of every example, str[num_examples]; None where it has none.
        groups: One group name per example; None where none was asked for.
        root: Folder that file keys are relative to; empty for arrays.
        files: Size in bytes and version of every file, by key; empty for arrays.
        images: uint8[num_examples, height, width, channels] for array sources, else None.
        texts: In UTF-8, for sources that hold them in one file, else None.
        kind: What an example is: `image`, `text` or `corpus`.
        corpus: The text of a corpus, else None; its passages are the examples, and stay in their order.
        version: What identifies an array source's content, or a CSV's own.
        notes: What was left out, for people.
        identities: What an example is known by wherever it stands: its id, or a hash of its content, equal for copies;
            None where that is its key.
        hashes: What `identify` gives of each of the images or texts that the listing holds; None where it holds none.
    """

    source: str
    keys: tuple[str, ...]
    labels: np.ndarray
    class_names: tuple[str, ...]
    splits: np.ndarray | None = None
    groups: tuple[str, ...] | None = None
    root: str = ""
    files: dict[str, storage.StoredFile] = dataclasses.field(default_factory=dict)
    images: np.ndarray | None = None
    texts: tuple[bytes, ...] | None = None
    kind: str = IMAGE
    corpus: Corpus | None = None
    version: str = ""
    notes: tuple[str, ...] = ()
    identities: tuple[str, ...] | None = None
    hashes: tuple[bytes, ...] | None = None

    def stat_digest(self) -> str:
        """SHA-256 of names, sizes and versions: cheap, and changes whenever a file might have."""
        # Only of a folder here does its name say where it is, and only together with the working directory.
        root = os.path.abspath(self.root) if self.files and not storage.is_remote(self.root) else self.root
        digest = hashlib.sha256(repr((self.kind, self.version, self.class_names, root)).encode())
        for key, label in zip(self.keys, self.labels.tolist(), strict=True):
            file = self.files.get(key)
            digest.update(f"{key}\0{label}\0{file and (file.num_bytes, file.version)}\n".encode())
        return digest.hexdigest()

    def content_digest(self) -> str:
        """SHA-256 of the content: reads every file once (about 30,000 small files a second)."""
        digest = hashlib.sha256(repr((self.kind, self.version, self.class_names, self.groups)).encode())
        if self.splits is not None:
            digest.update("\0".join(self.splits.tolist()).encode())

        def hash_file(key: str) -> bytes:
            try:
                return hashlib.blake2b(storage.read_bytes(f"{self.root}/{key}"), digest_size=16).digest()
            except InputError:  # Missing: for the writer to set aside, or refuse.
                return b""

        # Threads hide the latency of a bucket; on a local disk they only take turns.
        with ThreadPoolExecutor(_REMOTE_THREADS) as pool:
            read = pool.map if storage.is_remote(self.root) else map
            contents: Iterable[bytes] = read(hash_file, self.keys) if self.files else (b"" for _ in self.keys)
            for key, label, content in zip(self.keys, self.labels.tolist(), contents, strict=True):
                digest.update(f"{key}\0{label}\0".encode() + content)
        return digest.hexdigest()


def list_examples(params: WriteParams) -> Listing:
    """Every labelled example that `params.source` names.

    Raises:
        InputError: If the source is unknown, empty or malformed, does not hold what the task needs, or does not fit
            `params.class_names`.
    """
    kind, separator, location = params.source.partition(":")
    if not separator or kind not in _SOURCES:
        raise InputError(
            f"Unknown source {params.source!r}: expected one of {', '.join(f'{name}:…' for name in _SOURCES)}."
            + did_you_mean(kind, _SOURCES)
        )
    if not location:
        raise InputError(f"Source {params.source!r} names no place: expected {kind}:PATH or {kind}:NAME.")
    if params.group_column and kind != "csv":
        raise InputError(
            f"group_column={params.group_column!r} needs a csv: source. Received: {params.source!r}. Remove it."
        )
    if params.task != CLASSIFICATION and kind not in _WITH_ANY_TARGET:
        raise InputError(
            f"task={params.task!r} needs a {' or '.join(f'{name}:' for name in _WITH_ANY_TARGET)} source. Received: "
            f"{params.source!r}, which has one class per example. List the files with their labels in a CSV file."
        )
    if params.context_tokens and kind != "corpus":
        raise InputError(
            f"context_tokens={params.context_tokens} needs a corpus: source. Received: {params.source!r}. Remove it."
        )
    listing = _SOURCES[kind](location, params)
    if listing.corpus is not None:
        return listing
    _check_kind(listing, params)
    if params.task == MULTI_LABEL:
        if not listing.labels.any():
            raise InputError(f"No example of {params.source!r} has a label. Expected some, as in cat|dog.")
        return listing
    if params.task == REGRESSION:
        return listing
    if listing.splits is not None and not params.class_names:
        listing = _check_classes_of_splits(listing, kind in _FOLDERS)
    present = np.unique(listing.labels)
    if len(present) < 2:
        name = listing.class_names[present[0]] if len(present) else "none"
        raise InputError(
            f"A classifier needs at least two classes. Received: one class ({name!r}) in {params.source!r}. "
            "Give every class its own folder or label."
            + (f" If {name!r} holds their folders: {kind}:{location}/{name}." if kind in _FOLDERS else "")
        )
    return listing


def source_version(params: WriteParams) -> str:
    """Return a digest of what a source holds now: its files' names, sizes and versions.

    Of data that come with a library it is their name. On gs:// a file's version is its checksum, so that the same data
    written again have the same digest.

    Raises:
        InputError: If the source cannot be listed.
    """
    return list_examples(params).stat_digest() if params.location else params.source


_FOLDERS = ("images", "text")


def _check_classes_of_splits(listing: Listing, is_of_folders: bool) -> Listing:
    """Refuse classes that are judged and never trained. Those never judged are noted; of folders they are refused."""
    assert listing.splits is not None
    classes = np.array(listing.class_names)

    def found(where: np.ndarray) -> set[str]:
        return set(classes[np.unique(listing.labels[where])].tolist())

    trained, judged = found(listing.splits == TRAIN), found(listing.splits != TRAIN)
    lacking = {"training": judged - trained if trained else set()}
    if is_of_folders:
        lacking["test"] = trained - judged if judged else set()
    for where, names in lacking.items():
        if names:
            raise InputError(
                f"Classes without {where} examples in {listing.source}: {shown(sorted(names))}. Expected every class "
                "in every split. Add them there, or name the classes to use in data.class_names."
            )
    tested = found(listing.splits == TEST)
    unjudged = [name for name in listing.class_names if name not in tested]
    if tested and unjudged and not is_of_folders:
        return dataclasses.replace(listing, notes=(*listing.notes, f"no test examples of {shown(unjudged)}"))
    return listing


def _check_kind(listing: Listing, params: WriteParams) -> None:
    of_images = ("image_size", "channels", "encoding")
    of_texts = ("vocabulary_size", "num_tokens", "truncate")
    default = WriteParams(params.source)
    for name in of_images if listing.kind == TEXT else of_texts:
        if getattr(params, name) != getattr(default, name):
            raise InputError(
                f"{name} is for {'images' if listing.kind == TEXT else 'texts'}. Received: "
                f"{name}={getattr(params, name)!r} with {'texts' if listing.kind == TEXT else 'images'} in "
                f"{params.source!r}. Remove it."
            )


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python reads the bytes of such a name as lone surrogates.
        return False
    return True


def _split_named(name: str) -> str | None:
    """The split that a folder or a cell means; None where it means none."""
    return next((split for split, names in _SPLIT_NAMES.items() if name.lower() in names), None)


def _from_folders(kind: str, location: str, params: WriteParams) -> Listing:
    """A folder per class, optionally below folders of the splits. What stands above the classes is left out, and said.

    So `class_names` may choose among the folders: aclImdb has one of reviews without a class.
    """
    location = location.rstrip("/") or "/"  # On gs://, a//b is not a/b.
    files = storage.list_files(location)
    if garbled := [file.name for file in files if not _is_utf8(file.name)]:
        raise InputError(f"File names in {location} that are not UTF-8: {shown(garbled)}. Rename them.")
    top = sorted({file.name.split("/")[0] for file in files if "/" in file.name})
    split_of = {name: split for name in top if (split := _split_named(name))}
    has_splits = not {TRAIN, TEST}.isdisjoint(split_of.values())
    if has_splits and (strange := [name for name in top if name not in split_of]):
        raise InputError(
            f"Folders {shown(strange)} stand beside split folders in {location}. Expected only {', '.join(SPLITS)}. "
            "Move them into one of these, or out of the source."
        )
    if has_splits and len(set(split_of.values())) < len(split_of):
        raise InputError(
            f"Several folders in {location} are for one split: {split_of}. Expected one for each. Join or rename them."
        )
    depth = 3 if has_splits else 2
    placed = [file for file in files if file.name.count("/") >= depth - 1]
    misplaced = [file.name for file in files if file.name.count("/") < depth - 1]
    _check_misplaced(misplaced, bool(placed), kind, location, has_splits)
    notes = [f"left out {len(misplaced)} files that are in no class's folder"] if misplaced else []

    def class_of(file: storage.StoredFile) -> str:
        return file.name.split("/")[depth - 2]

    found = Counter(map(class_of, placed))
    if params.class_names:
        if absent := [name for name in params.class_names if name not in found]:
            raise InputError(
                f"No folder in {location} for the classes {shown(absent)}. Received: {shown(sorted(found))}. Correct "
                "data.class_names, or add the folders."
            )
        placed = [file for file in placed if class_of(file) in params.class_names]
        notes += [
            f"left out {count:,} files in {name!r}, which data.class_names lacks"
            for name, count in sorted(found.items())
            if name not in params.class_names
        ]
    names = list(map(class_of, placed))
    splits = np.array([split_of[file.name.split("/")[0]] for file in placed]) if has_splits else None
    labels, classes = index_labels(names, params.class_names, [file.name for file in placed])
    return Listing(
        source=params.source,
        keys=tuple(file.name for file in placed),
        labels=labels,
        class_names=classes,
        splits=splits,
        root=location,
        files={file.name: file for file in placed},
        kind=kind,
        notes=tuple(notes),
    )


def _check_misplaced(names: Sequence[str], has_others: bool, kind: str, location: str, has_splits: bool) -> None:
    """Check that no example stands above the classes' folders; a README may, or a list of the files."""
    examples = [name for name in names if kind == IMAGE and has_image_suffix(name)]
    if not examples and has_others:
        return
    advice = "Move them into the folder of their class, or out of the source."
    if table := next((name for name in names if name.endswith(".csv")), ""):
        advice = f"Move them into the folder of their class, or give the list of them: csv:{location}/{table}."
    raise InputError(
        f"Files without a class in {location}: {shown(examples or list(names))}. Expected "
        f"{'SPLIT/CLASS/FILE' if has_splits else 'CLASS/FILE'}. {advice}"
    )


_SHOWN_CHARACTERS = 60


def _from_csv(location: str, params: WriteParams) -> Listing:
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
        if strange := sorted({row["split"] for row in rows if not _split_named(row["split"])}):
            raise InputError(f"Unknown splits in {location}: {shown(strange)}. Expected {', '.join(SPLITS)}.")
        splits = np.array([_split_named(row["split"]) for row in rows])
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
    scheme = "gs://" if storage.is_remote(paths[0]) else ""
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


Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


def _from_arrays(arrays: Arrays, version: str, params: WriteParams) -> Listing:
    """Images and labels per split; the split `""` means that the source has none of its own."""
    for split, (images, _) in arrays.items():
        _check_images(split, images, params.source)
    keys = [f"{split or 'all'}/{i:08d}" for split, (images, _) in arrays.items() for i in range(len(images))]
    labels, classes = _ARRAY_TARGETS[params.task](arrays, keys, params)
    shapes = {images.shape[1:] for images, _ in arrays.values()}
    if len(shapes) > 1:
        raise InputError(
            f"Images of different shapes in {params.source}: {sorted(shapes)}. Expected one shape in all splits."
        )
    images = np.concatenate([images for images, _ in arrays.values()])
    if images.ndim == 3:
        images = images[..., None]
    hashes = tuple(map(identify, images))
    splits = None
    if "" not in arrays:
        splits = np.concatenate([np.full(len(images), split, "<U10") for split, (images, _) in arrays.items()])
    return Listing(
        source=params.source,
        keys=tuple(keys),
        labels=labels,
        class_names=classes,
        splits=splits,
        images=images,
        version=version,
        identities=tuple(map(bytes.hex, hashes)),
        hashes=hashes,
    )


def _check_images(split: str, images: np.ndarray, source: str) -> None:
    fits = images.ndim == 3 or (images.ndim == 4 and images.shape[-1] in (1, 3))
    if not fits or images.dtype != np.uint8 or 0 in images.shape[1:]:
        are_shares = images.dtype.kind == "f" and images.size and images.min() >= 0 and images.max() <= 1
        how = ": (images * 255).round().astype('uint8')" if are_shares else ""
        raise InputError(
            f"Cannot use {_images_of(split)} in {source}: expected uint8[N, height, width] or uint8[N, height, width, "
            f"1|3] in [0, 255], received {images.dtype}{list(images.shape)}. Convert them before saving{how}."
        )


def _images_of(split: str) -> str:
    return f"the images of the {split!r} split" if split else "the images"


def _class_arrays(arrays: Arrays, keys: Sequence[str], params: WriteParams) -> tuple[np.ndarray, tuple[str, ...]]:
    for split, (images, labels) in arrays.items():
        if labels.size != len(images) or labels.dtype.kind not in "iuSU":
            advice = "Correct them."
            if labels.ndim == 2 and len(labels) == len(images):
                advice = "Of one column per class save labels.argmax(1), or set data.task to multi_label."
            elif labels.dtype.kind == "f":
                advice = "Save classes as labels.astype(int); for other numbers set data.task to regression."
            raise InputError(
                f"Labels do not fit {_images_of(split)} in {params.source}: expected {len(images)} whole numbers or "
                f"strings, received {labels.dtype}{list(labels.shape)}. {advice}"
            )
    values = np.concatenate([labels.reshape(-1) for _, labels in arrays.values()])
    try:
        names = values.astype(str).tolist()
    except UnicodeDecodeError as error:
        raise InputError(f"Cannot use the labels of {params.source}: expected ASCII, received {error}.") from error
    if values.dtype.kind in "iu" and params.class_names and not set(names) <= set(params.class_names):
        return _named(values, params.class_names, keys), params.class_names
    return index_labels(names, params.class_names, keys)


def _named(values: np.ndarray, class_names: Sequence[str], keys: Sequence[str]) -> np.ndarray:
    """int32[num_examples] of numbers that stand for the names, in their order."""
    outside = np.flatnonzero((values < 0) | (values >= len(class_names)))
    if len(outside):
        raise InputError(
            f"Labels outside the class list: {values[outside[0]]} (first at {keys[outside[0]]}). Expected numbers "
            f"below {len(class_names)}, for {list(class_names)} in order. Correct the labels, or data.class_names."
        )
    return values.astype(np.int32)


def _hot_arrays(arrays: Arrays, keys: Sequence[str], params: WriteParams) -> tuple[np.ndarray, tuple[str, ...]]:
    parts = [check_hot(labels, len(images), params.source) for images, labels in arrays.values()]
    sizes = {part.shape[1] for part in parts}
    names = params.class_names or tuple(map(str, range(max(sizes))))
    if sizes != {len(names)}:
        raise InputError(
            f"Labels do not fit in {params.source}: expected {len(names)} columns, one for each of {list(names)}, "
            f"received {sorted(sizes)}. Correct data.class_names or the arrays."
        )
    return np.concatenate(parts), names


def _number_arrays(arrays: Arrays, keys: Sequence[str], params: WriteParams) -> tuple[np.ndarray, tuple[str, ...]]:
    for images, targets in arrays.values():
        if targets.dtype.kind not in "fiu" or targets.ndim not in (1, 2) or len(targets) != len(images):
            raise InputError(
                f"Targets do not fit in {params.source}: expected numbers [{len(images)}] or [{len(images)}, targets], "
                f"received {targets.dtype}{list(targets.shape)}."
            )
    parts = [targets.reshape(len(targets), -1) for _, targets in arrays.values()]
    sizes = {part.shape[1] for part in parts}
    count = max(sizes)
    names = params.target_columns or (("target",) if count == 1 else tuple(f"target_{i}" for i in range(count)))
    if sizes != {len(names)} or not count:
        raise InputError(
            f"Targets do not fit in {params.source}: expected {len(names)} columns, one for each of {list(names)}, "
            f"received {sorted(sizes)}. Correct data.target_columns or the arrays."
        )
    return check_finite(np.concatenate(parts).astype(np.float64), names, keys), names


_ARRAY_TARGETS: Mapping[str, Callable[[Arrays, Sequence[str], WriteParams], tuple[np.ndarray, tuple[str, ...]]]] = {
    CLASSIFICATION: _class_arrays,
    MULTI_LABEL: _hot_arrays,
    REGRESSION: _number_arrays,
}


_UNREADABLE = (ValueError, OSError, EOFError, TypeError, MemoryError, RuntimeError)  # Of an array file.


def _from_npz(location: str, params: WriteParams) -> Listing:
    """x_train/y_train, x_validation/y_validation, x_test/y_test; or one unsplit pair x/y or images/labels."""
    content = storage.read_bytes(location)
    try:
        loaded: Any = np.load(io.BytesIO(content), allow_pickle=False)
        if not hasattr(loaded, "files"):
            raise ValueError("a single array, as numpy.save writes it")
        data = {name: np.asarray(loaded[name]) for name in loaded.files}
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"Cannot read {location}: expected an .npz file without pickled objects, received "
            f"{str(error).partition('. If you trust')[0]}. Write it with numpy.savez_compressed."
        ) from error
    arrays: Arrays = {}
    pairs = {f"{side}_{alias}": split for split, names in _SPLIT_NAMES.items() for alias in names for side in "xy"}
    given = [name for name in data if re.match(r"[xy]_", name, re.IGNORECASE)]
    for name in given:
        split, partner = pairs.get(name), {"x": "y", "y": "x"}[name[0].lower()] + name[1:]
        if split is None or partner not in data or (split in arrays and name[0] == "x"):
            raise InputError(
                f"Cannot use {name!r} in {location}: expected one pair for each split, as x_train and y_train, "
                f"x_validation and y_validation, x_test and y_test. Received: {sorted(given)}. Rename or remove some."
            )
        if name[0] == "x":
            arrays[split] = data[name], data[partner]
    for images, labels in (("x", "y"), ("images", "labels")):
        if not arrays and images in data and labels in data:
            arrays[""] = data[images], data[labels]
    if not arrays:
        raise InputError(
            f"Found no images in {location}: expected arrays x_train, y_train (and x_test, y_test) or images, labels; "
            f"received {sorted(data)}."
        )
    return _from_arrays(arrays, hashlib.sha256(content).hexdigest(), params)


def read_idx(content: bytes, name: str) -> np.ndarray:
    """The uint8 array of an IDX file, gzipped or not (format: http://yann.lecun.com/exdb/mnist/).

    Raises:
        InputError: If it is not one.
    """
    try:
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        zeros, kind, rank = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{rank}I", content[4 : 4 + 4 * rank])
        if zeros or kind != 8:
            raise ValueError(f"magic number {content[:4].hex()}")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (struct.error, ValueError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"Cannot read {name}: expected an IDX file of unsigned bytes, received {error}.") from error


def _from_idx(location: str, params: WriteParams) -> Listing:
    """MNIST's four files, gzipped or not, by their usual names."""
    files = {file.name.removesuffix(".gz").replace(".", "-"): file.name for file in storage.list_files(location)}
    arrays: Arrays = {}
    digest = hashlib.sha256()
    for split, prefix in ((TRAIN, "train"), (TEST, "t10k")):
        pair = []
        for name in (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"):
            if name not in files:
                raise InputError(
                    f"Missing {name}[.gz] in {location}. Expected MNIST's four files; received "
                    f"{sorted(files.values())}."
                )
            content = storage.read_bytes(storage.join(location, files[name]))
            digest.update(content)
            pair.append(read_idx(content, f"{location}/{files[name]}"))
        arrays[split] = pair[0], pair[1]
    return _from_arrays(arrays, digest.hexdigest(), params)


def _from_sklearn(location: str, params: WriteParams) -> Listing:
    """scikit-learn's bundled 8×8 handwritten digits."""
    if location != "digits":
        raise InputError(f"Unknown source {params.source!r}: expected sklearn:digits, the data set that is bundled.")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # The set counts ink from 0 to 16.
    return _from_arrays({"": (images, digits.target)}, hashlib.sha256(images.tobytes()).hexdigest(), params)


_FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# What the labels' numbers stand for; empty where the number is the name.
_KERAS_DATASETS: Mapping[str, tuple[str, ...]] = {
    "mnist": (),
    "fashion_mnist": _FASHION,
    "cifar10": _CIFAR10,
    "cifar100": (),
    "imdb": (),
}


def _from_keras(location: str, params: WriteParams) -> Listing:
    """A data set that Keras downloads, or has in ~/.keras/datasets."""
    if location not in _KERAS_DATASETS:
        raise InputError(f"Unknown source {params.source!r}: expected keras: and one of {', '.join(_KERAS_DATASETS)}.")
    import keras

    try:
        module = getattr(keras.datasets, location)
        train, test = module.load_data()
        word_index = module.get_word_index() if location == "imdb" else {}
    except Exception as error:  # The downloader raises a plain Exception.
        raise InputError(
            f"Could not download {params.source!r}: {error}. Keras takes only the very file that it knows, from "
            "~/.keras/datasets; give another copy by its place: npz:FILE, idx:DIR, images:DIR or text:DIR."
        ) from error
    if location == "imdb":
        return _from_word_ids({TRAIN: train, TEST: test}, word_index, params)
    digest = hashlib.sha256(train[0].tobytes() + test[0].tobytes()).hexdigest()
    params = dataclasses.replace(params, class_names=params.class_names or _KERAS_DATASETS[location])
    return _from_arrays({TRAIN: train, TEST: test}, digest, params)


_WITH_ANY_TARGET = ("csv", "npz")
_IMDB_FIRST_WORD = 3  # Before the words' own ids come those of padding, of the start and of what is unknown.


def _from_word_ids(arrays: Arrays, word_index: Mapping[str, int], params: WriteParams) -> Listing:
    """Keras's film reviews: lists of word ids, put back into words."""
    words = {index + _IMDB_FIRST_WORD: word for word, index in word_index.items()}
    digest = hashlib.sha256()
    texts: list[bytes] = []
    for reviews, labels in arrays.values():
        for review in reviews:
            texts.append(" ".join(words[id_] for id_ in review if id_ in words).encode())
            digest.update(texts[-1] + b"\n")
        digest.update(np.asarray(labels).tobytes())
    keys = [f"{split}/{i:08d}" for split, (reviews, _) in arrays.items() for i in range(len(reviews))]
    names = ("neg", "pos")
    found = [names[i] for _, of in arrays.values() for i in of.tolist()]
    indices, classes = index_labels(found, params.class_names, keys)
    splits = np.concatenate([np.full(len(reviews), split, "<U10") for split, (reviews, _) in arrays.items()])
    hashes = tuple(map(identify, texts))
    return Listing(
        source=params.source,
        keys=tuple(keys),
        labels=indices,
        class_names=classes,
        splits=splits,
        texts=tuple(texts),
        kind=TEXT,
        version=digest.hexdigest(),
        identities=tuple(map(bytes.hex, hashes)),
        hashes=hashes,
    )


def _from_corpus(location: str, params: WriteParams) -> Listing:
    """One text in UTF-8; its label is how many characters a passage predicts."""
    corpus = read_corpus(location, params)
    splits, keys, starts, ends = zip(*list_passages(corpus), strict=True)
    return Listing(
        source=params.source,
        keys=keys,
        labels=np.array(ends, np.int32) - np.array(starts, np.int32),
        class_names=corpus.class_names,
        splits=np.array(splits),
        corpus=corpus,
        version=corpus.version,
    )


_SOURCES: dict[str, Callable[[str, WriteParams], Listing]] = {
    "images": partial(_from_folders, IMAGE),
    "csv": _from_csv,
    "corpus": _from_corpus,
    "npz": _from_npz,
    "idx": _from_idx,
    "sklearn": _from_sklearn,
    "keras": _from_keras,
    "text": partial(_from_folders, TEXT),
}
