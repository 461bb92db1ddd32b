"""`Listing`, the examples of a source of any kind; and `Source`, the description of a kind."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION, Quarantined
from tpu_components.core.examples.interface import CORPUS, IMAGE, PADDING, CorpusInput
from tpu_components.core.files import storage
from tpu_components.core.sources.columns import Files, Names, Pieces, pick
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.spans import LaterSpans, Spans, read_content
from tpu_components.core.work.workers import in_threads

_DIGESTED_AT_ONCE = 1 << 16
SPLIT_NAMES = {TRAIN: ("train", "training"), VALIDATION: ("validation", "valid", "val"), TEST: ("test", "testing")}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text that is divided by position; its passages are the examples of a listing.

    Attributes:
        input: Description of a passage.
        ids: Ids of each split's characters, of the input's stored dtype; splits without characters are left out.
        starts: Position in the text at which each split begins.
        ends: int64[num_examples]: place in its split at which each passage ends.
    """

    input: CorpusInput
    ids: Mapping[str, np.ndarray]
    starts: Mapping[str, int]
    ends: np.ndarray

    @property
    def split_rule(self) -> str:
        """Rule by which the splits are made, in words."""
        return "by position: " + ", ".join(
            f"{name} {start:,} to {start + len(self.ids[name]):,}" for name, start in self.starts.items()
        )

    def passage(self, split: str, example: int) -> np.ndarray:
        """Return the num_tokens + 1 ids of a passage of a split; 0 before the beginning of the split."""
        ids, width, end = self.ids[split], self.input.num_tokens + 1, int(self.ends[example])
        known = ids[max(end - width, 0) : end]
        return np.concatenate([np.full(width - len(known), PADDING, ids.dtype), known])


@dataclasses.dataclass(frozen=True)
class Listing:
    """The examples of a source, in a canonical order that does not depend on the file system.

    Attributes:
        keys: One unique name per example: its path below `root`, or its place in an array.
        labels: int32[num_examples], indices into `class_names`; of other tasks, see `targets`.
        class_names: The classes; of a regression, the names of the targets.
        splits: The source's own split of every example, str[num_examples]; None where it has none.
        groups: One group name per example; None where none was asked for.
        slices: A value per example in each of the columns that are kept beside the records, or beside the answers of
            examples without labels, by name; of the latter also the `id`, where there is one.
        root: Folder that file keys are relative to; empty for arrays.
        files: Size and version of the file of every example; None for arrays.
        spans: Parts of larger files that are the examples' content, for sources that have such, else None.
        images: uint8[num_examples, height, width, channels] for array sources, else None.
        texts: In UTF-8, for sources that hold them in one file, else None.
        kind: Kind of example, `image` or `text`; of a corpus see `example_kind`.
        corpus: The text of a corpus, else None; its passages are the examples, and stay in their order.
        version: Digest of an array source's content, or of the CSV file.
        notes: Sentences for people on what was left out.
        identities: Names by which examples are known wherever they stand: an id, or a hash of the content, equal for
            copies; None where these are the keys.
        hashes: uint64[num_examples], what `identify` makes of the images or texts that the listing holds; None where it
            holds none.
        bad: Inputs that are no examples, as a row without a label: set aside like those that cannot be read.
        weights: Weights of the examples in the training's loss, float32[num_examples]; None without `columns.weight`.
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
    version: str = ""
    notes: tuple[str, ...] = ()
    identities: Sequence[str] | None = None
    hashes: np.ndarray | None = None
    bad: tuple[Quarantined, ...] = ()
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("keys", "groups", "identities"):
            column = getattr(self, name)
            if column is not None and not isinstance(column, Names):
                object.__setattr__(self, name, Names.collect(column))
        if self.texts is not None and not isinstance(self.texts, Pieces):
            object.__setattr__(self, "texts", Pieces.collect(self.texts))

    @property
    def example_kind(self) -> str:
        """Kind of example: `image`, `text` or `corpus`. Digests use `kind`, which is `image` for a corpus."""
        return CORPUS if self.corpus is not None else self.kind

    @property
    def num_inputs(self) -> int:
        """Number of examples, and of inputs that are none."""
        return len(self.keys) + len(self.bad)

    @property
    def num_bytes(self) -> int:
        """Size of all content that is read from files, in bytes."""
        if self.spans:
            return self.spans.num_bytes
        return int(self.files.sizes.sum()) if self.files else 0

    @property
    def place(self) -> str:
        """Place that its content is read from: a folder, or of parts of larger files the first of these."""
        return self.spans.paths[0] if self.spans else self.root

    def held(self, examples: np.ndarray) -> tuple[list[str], Any]:
        """Return the keys of examples, int[…], and their contents where the listing has them; see `read_content`."""
        keys = pick(self.keys, examples)
        if self.corpus is not None and self.splits is not None:
            return keys, [self.corpus.passage(self.splits[i], i).tobytes() for i in examples.tolist()]
        if self.spans is not None:
            return keys, [self.spans[i] for i in examples.tolist()]
        if self.texts is not None:
            return keys, pick(self.texts, examples)
        return keys, None if self.images is None else self.images[examples]

    def read(self, example: int) -> Any:
        """Return the content of an example: the bytes of an image file or a text, or an array's element.

        Raises:
            InputError: If it cannot be read.
        """
        (key,), contents = self.held(np.array([example]))
        return read_content(self.root, key, None if contents is None else contents[0])

    def stat_digest(self) -> str:
        """Return the SHA-256 of names, sizes and versions: cheap, and another whenever a file may have changed."""
        # Only of a folder here does its name say where it is, and only together with the working directory.
        root = os.path.abspath(self.root) if self.files and not storage.is_remote(self.root) else self.root
        digest = hashlib.sha256(repr((self.kind, self.version, self.class_names, root)).encode())
        # Many at a time, so that no list of all is made.
        for at in range(0, len(self.keys), _DIGESTED_AT_ONCE):
            part = slice(at, at + _DIGESTED_AT_ONCE)
            digest.update("\0".join(self.keys[part]).encode())
            digest.update(repr(self.labels[part].tolist()).encode())
            if self.files:
                digest.update(self.files.sizes[part].astype(np.int64).tobytes() + self.files.versions[part].tobytes())
        return digest.hexdigest()

    def content_digest(self) -> str:
        """Return the SHA-256 of the content: reads every file once (about 30,000 small files a second)."""
        digest = hashlib.sha256(repr((self.kind, self.version, self.class_names, self.groups)).encode())
        for path in self.spans.paths if self.spans else ():
            with storage.open_file(path) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        if self.splits is not None:
            digest.update("\0".join(self.splits.tolist()).encode())

        def hash_file(key: str) -> bytes:
            try:
                return hashlib.blake2b(storage.read_bytes(f"{self.root}/{key}"), digest_size=16).digest()
            except InputError:  # Missing: for the writer to set aside, or refuse.
                return b""

        contents: Iterable[bytes] = (b"" for _ in self.keys)
        if self.files:
            contents = in_threads(hash_file, self.root, self.keys)
        for key, label, content in zip(self.keys, self.labels.tolist(), contents, strict=True):
            digest.update(f"{key}\0{label}\0".encode() + content)
        return digest.hexdigest()


def split_named(name: str) -> str | None:
    """Return the split that a folder or a cell means; None where it means none."""
    return next((split for split, names in SPLIT_NAMES.items() if name.lower() in names), None)


def without_labels(count: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return what stands for the labels and classes of examples that have none."""
    return np.zeros(count, np.int32), ()


@dataclasses.dataclass(frozen=True)
class Source:
    """A kind of source.

    Attributes:
        form: A source of this kind as a user writes it, `csv:FILE`; what stands before the colon is the kind's name.
        read: Function that lists the examples of a place or name. With `labelled=False` it needs no labels and may list
            more examples, where the kind can do without them.
        takes: Fields of WriteParams that not every kind takes, and this one does.
        has_class_folders: Whether each class is a folder.
        is_place: Whether it names a place, here or on gs://, and no data set that a library brings.
        is_table: Whether it is a file that may name files beside it.
        is_downloaded: Whether nothing is known of the data before they have been downloaded.
    """

    form: str
    read: Callable[[str, WriteParams, bool], Listing]
    takes: tuple[str, ...] = ()
    has_class_folders: bool = False
    is_place: bool = True
    is_table: bool = False
    is_downloaded: bool = False
