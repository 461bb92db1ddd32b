"""`Listing`, the examples of a source of any kind, and `Source`, the description of a kind of source."""

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION, Quarantined
from tpu_components.core.examples.interface import CORPUS, IMAGE, PADDING, CorpusInput
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.sources.columns import Files, Names, Pieces, pick
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import LaterSpans, Spans
from tpu_components.core.sources.stored_records import StoredRecords
from tpu_components.core.sources.tasks import Selection
from tpu_components.core.work.workers import in_threads

_DIGESTED_AT_ONCE = 1 << 16
SPLIT_NAMES = {TRAIN: ("train", "training"), VALIDATION: ("validation", "valid", "val"), TEST: ("test", "testing")}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text that is divided into splits by position. The passages of the text are the examples of a listing.

    Attributes:
        input: Description of a passage as the input of a model.
        ids: For each non-empty split, the IDs of its characters, in the dtype in which the input is stored.
        starts: Position in the text at which each split begins.
        ends: int64[num_examples]: end of each passage, as a position in its split.
    """

    input: CorpusInput
    ids: Mapping[str, np.ndarray]
    starts: Mapping[str, int]
    ends: np.ndarray

    @property
    def split_rule(self) -> str:
        """Description of the split by position, with the first and last position of each split."""
        return "by position: " + ", ".join(
            f"{name} {start:,} to {start + len(self.ids[name]):,}" for name, start in self.starts.items()
        )

    def passage(self, split: str, example: int) -> np.ndarray:
        """Return the character IDs of a passage, int[num_tokens + 1].

        Positions before the start of the split are 0 (padding).
        """
        ids = self.ids[split]
        width = self.input.num_tokens + 1
        end = int(self.ends[example])
        known = ids[max(end - width, 0) : end]
        return np.concatenate([np.full(width - len(known), PADDING, ids.dtype), known])


@dataclasses.dataclass(frozen=True)
class Listing:
    """The examples of a source, in a canonical order that does not depend on the file system.

    Attributes:
        keys: One unique name per example: its path below `root` or, without files, its position in the source.
        labels: int32[num_examples], indices into `class_names`. For tasks other than classification, see the module
            `targets`.
        class_names: The classes; for a regression, the names of the targets.
        splits: Split of every example in the source, str[num_examples], or None if the source has no splits.
        groups: One group name per example, or None without `group_column`.
        slices: Values of the slice columns, one per example, by column name. They are stored with the records. In a
            listing for predictions, they include the column `id`, and are stored with the predictions.
        root: Folder that file keys are relative to. Empty for arrays.
        files: Size and version of the file of every example, or None for arrays.
        spans: Byte ranges of the examples in larger files such as archives, or None for other sources.
        images: uint8[num_examples, height, width, channels] for array sources, otherwise None.
        texts: Texts in UTF-8, for sources that store them in one file, otherwise None.
        kind: Kind of example, `image` or `text`; for a corpus, see `example_kind`.
        corpus: The text of a corpus, otherwise None. The passages of the text are the examples, and stay in order.
        containers: Files that contain the examples of `spans`, with their paths as names, and their sizes and versions
            at the time of listing.
        version: Digest of the content of arrays, of a table or of a text, or of the names, sizes and versions of
            `containers`. Empty for folders.
        notes: Messages to the user, for example about files that were left out.
        identities: Names that identify examples independently of their position in the source: an ID, or a hash of the
            content, which is equal for copies. None if the keys are used.
        has_ids: Whether `identities` are IDs from the source. Otherwise, they are paths or hashes.
        hashes: uint64[num_examples]: hash of the content of each example, from `identify`, or None if not computed.
        bad: Inputs that cannot be used as examples, such as a row without a label. Like unreadable inputs, they are
            quarantined.
        weights: Weights of the examples in the training loss, float32[num_examples], or None without `columns.weight`.
        stored: The files of the examples, if their records are used in place instead of being written as new records.
            Otherwise None.
    """

    keys: Sequence[str]
    labels: np.ndarray
    class_names: tuple[str, ...]
    splits: np.ndarray | None = None
    groups: Sequence[str] | None = None
    slices: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    root: str = ""
    files: Files | None = None
    spans: Spans | LaterSpans | None = None
    images: np.ndarray | None = None
    texts: Sequence[bytes] | None = None
    kind: str = IMAGE
    corpus: Corpus | None = None
    containers: tuple[storage.StoredFile, ...] = ()
    version: str = ""
    notes: tuple[str, ...] = ()
    identities: Sequence[str] | None = None
    has_ids: bool = False
    hashes: np.ndarray | None = None
    bad: tuple[Quarantined, ...] = ()
    weights: np.ndarray | None = None
    stored: StoredRecords | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "groups", "identities"):
            column = getattr(self, name)
            if column is not None and not isinstance(column, Names):
                object.__setattr__(self, name, Names.collect(column))
        if self.texts is not None and not isinstance(self.texts, Pieces):
            object.__setattr__(self, "texts", Pieces.collect(self.texts))

    @property
    def example_kind(self) -> str:
        """Kind of example: `image`, `text` or `corpus`.

        For a corpus, the attribute `kind` is `image` instead. It is part of the data's digests, so it stays unchanged.
        """
        return CORPUS if self.corpus is not None else self.kind

    def without(self, *unusable: Mapping[int, str]) -> Self:
        """Return the listing with some examples moved to `bad`.

        Args:
            unusable: Mappings from the index of an example to the reason. An example may be in several mappings.
        """
        reasons: dict[int, str] = {}
        for mapping in unusable:
            for place, reason in mapping.items():
                reasons[place] = f"{reasons[place]}; {reason}" if place in reasons else reason
        if not reasons:
            return self
        left_out = sorted(reasons)
        kept = np.ones(len(self.keys), bool)
        kept[left_out] = False
        places = np.flatnonzero(kept)
        columns = ("labels", "splits", "images", "hashes", "weights")
        changed: dict[str, Any] = {
            name: None if (rows := getattr(self, name)) is None else rows[places] for name in columns
        }
        for name in ("keys", "groups", "identities", "texts", "files", "spans"):
            column = getattr(self, name)
            changed[name] = None if column is None else column.take(places)
        changed["slices"] = {name: pick(column, places) for name, column in self.slices.items()}
        bad = [Quarantined(self.keys[i], reasons[i]) for i in left_out]
        return dataclasses.replace(self, **changed, bad=(*self.bad, *bad))

    @property
    def num_inputs(self) -> int:
        """Number of examples and of `bad` inputs together."""
        return len(self.keys) + len(self.bad)

    @property
    def num_bytes(self) -> int:
        """Size of all content that is read from files, in bytes."""
        if self.spans:
            return self.spans.num_bytes
        return int(self.files.sizes.sum()) if self.files else 0

    def select(self, examples: np.ndarray) -> Selection:
        """Return the examples with the indices `examples`, int[count], in the form that is sent to a worker."""
        return Selection(
            self.root,
            pick(self.keys, examples),
            self._contents(examples),
            self.labels[examples].tolist(),
            *(None if rows is None else rows[examples] for rows in (self.hashes, self.weights)),
        )

    def _contents(self, examples: np.ndarray) -> Any:
        """Return the contents of the examples with these indices. Their types are those of `Selection.contents`."""
        if self.corpus is not None and self.splits is not None:
            return [self.corpus.passage(self.splits[i], i).tobytes() for i in examples.tolist()]
        if self.spans is not None:
            return [self.spans[i] for i in examples.tolist()]
        if self.texts is not None:
            return pick(self.texts, examples)
        return None if self.images is None else self.images[examples]

    def read(self, example: int) -> Any:
        """Return the content of an example: the bytes of an image file or a text, or an element of an array.

        Raises:
            InputError: If the content cannot be read.
        """
        (content,) = self.select(np.array([example])).read_each()
        if isinstance(content, Exception):
            raise content
        return content

    def stat_digest(self) -> str:
        """Return the SHA-256 of the names, labels, sizes and versions of the examples' files.

        The digest is fast to compute, because no file is read. It differs whenever a file may have changed.
        """
        # A local folder is identified by its absolute path only.
        root = os.path.abspath(self.root) if self.files and not Location(self.root).is_remote else self.root
        digest = hashlib.sha256(repr((self.kind, self.version, self.class_names, root)).encode())
        # In parts, so that no list of all names is made.
        for at in range(0, len(self.keys), _DIGESTED_AT_ONCE):
            part = slice(at, at + _DIGESTED_AT_ONCE)
            digest.update("\0".join(self.keys[part]).encode())
            digest.update(repr(self.labels[part].tolist()).encode())
            if self.files:
                digest.update(self.files.sizes[part].astype(np.int64).tobytes() + self.files.versions[part].tobytes())
        return digest.hexdigest()

    def require_unchanged(self) -> None:
        """Check that the files of the examples have not changed since they were listed.

        Call this method after the files have been read.

        Sources in memory, such as the texts of a CSV file, are read once and cannot change.

        Raises:
            InputError: If a file has another size or version, or is missing.
        """
        changed = []
        if self.files is not None:
            now = Files.collect(storage.stat_files(self.root, self.keys))
            differs = (now.sizes != self.files.sizes) | (now.versions != self.files.versions)
            changed += pick(self.keys, np.flatnonzero(differs))
        if self.containers:
            stored = storage.stat_paths([file.name for file in self.containers])
            pairs = zip(self.containers, stored, strict=True)
            changed += [listed.name for listed, now in pairs if listed[1:] != now[1:]]
        if changed:
            raise InputError(
                f"The data changed while they were being read: {len(changed):,} files differ from the listing, for "
                f"example {changed[0]!r}. Wait until the export or copy is complete, and run again."
            )

    def content_digest(self) -> str:
        """Return the SHA-256 of the examples: their content, keys, labels, splits and groups.

        Every file is read, at about 30,000 small files per second.
        """
        digest = hashlib.sha256(repr((self.kind, self.version, self.class_names, self.groups)).encode())
        for path in self.spans.paths if self.spans else ():
            with storage.open_file(path) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        if self.splits is not None:
            digest.update("\0".join(self.splits.tolist()).encode())

        def hash_file(key: str) -> bytes:
            try:
                return hashlib.blake2b(storage.read_bytes(f"{self.root}/{key}"), digest_size=16).digest()
            except InputError:  # A missing file: the writer sets it aside, or fails.
                return b""

        contents: Iterable[bytes] = (b"" for _ in self.keys)
        if self.files:
            contents = in_threads(hash_file, self.root, self.keys)
        for key, label, content in zip(self.keys, self.labels.tolist(), contents, strict=True):
            digest.update(f"{key}\0{label}\0".encode() + content)
        return digest.hexdigest()


def split_named(name: str) -> str | None:
    """Return the split that a folder name or the text of a cell stands for, for example `validation` for `val`.

    Return None if it does not stand for a split.
    """
    return next((split for split, names in SPLIT_NAMES.items() if name.lower() in names), None)


def split_in_words(name: str) -> str | None:
    """Return the split that one of the words in a name stands for, for example `test` for `seg_test`.

    Return None if no word stands for a split, or if different words stand for different splits.

    Example:
        >>> [split_in_words(name) for name in ("seg_test", "training_set", "train2017", "test-train", "trained")]
        ['test', 'train', 'train', None, None]
    """
    splits = {split for word in re.findall("[a-z]+", name.lower()) if (split := split_named(word))}
    return splits.pop() if len(splits) == 1 else None


def without_labels(count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return zero labels, int32[count], and no class names, for examples without labels."""
    return np.zeros(count, np.int32), ()


@dataclasses.dataclass(frozen=True)
class Source:
    """Description of a kind of source.

    Attributes:
        form: Syntax for users, for example `csv:FILE`. The name of the kind is before the colon.
        read: Function that lists the examples. Its arguments are the place or name of the data, the parameters, and
            whether labels are needed. Without labels, the function may list more examples, such as files outside class
            folders.
        suffixes: File suffixes, such as `.csv`, that imply this kind of source if the user names no kind.
        takes: Optional fields of WriteParams that this kind supports.
        has_class_folders: Whether each class is a folder.
        is_place: Whether the source is a path or URI, not the name of a library's data set.
        is_table: Whether the source is a table whose rows may contain paths of other files.
        is_downloaded: Whether the data must be downloaded before they can be listed.
    """

    form: str
    read: Callable[[Location, WriteParams, bool], Listing]
    suffixes: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    has_class_folders: bool = False
    is_place: bool = True
    is_table: bool = False
    is_downloaded: bool = False
