"""Reads every example once, checks it, and writes it into its shard; shards are written in parallel."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np

from components import progress, storage
from components.artifacts import (
    COPIES_FILE,
    KEY_FEATURE,
    LABEL_FEATURE,
    MANIFEST_FILE,
    TEXT_FEATURE,
    TRAIN,
    Manifest,
    Quarantined,
    Shard,
    Split,
)
from components.create_tfrecords.copies import (
    LOOKED_AT_ONCE,
    Copies,
    find_alike,
    look_at,
    pairs_of_equal,
    same_words,
    thin_out,
)
from components.create_tfrecords.corpus import CorpusWriter
from components.create_tfrecords.params import WriteParams, WriteResult
from components.create_tfrecords.planning import DatasetPlan, plan_dataset
from components.create_tfrecords.sharding import plan_shards
from components.create_tfrecords.sources import Listing
from components.create_tfrecords.splitting import SPLIT_RULE_VERSION
from components.create_tfrecords.targets import check_variation, describe_targets
from components.errors import InputError
from components.identities import EXAMPLES_FILE, IDENTITY_BYTES, identify, save_identities
from components.images import (
    ImageRule,
    UnreadableImageError,
    check_encoded,
    convert_pixels,
    decode_pixels,
    resize_pixels,
)
from components.interface import (
    CLASSIFICATION,
    LANGUAGE_MODEL,
    MULTI_LABEL,
    REGRESSION,
    TASKS,
    TEXT,
    CorpusInput,
    ImageInput,
    TextInput,
)
from components.records import ENCODED, RAW, encode_example, frame_record
from components.safe_path import safe_children
from components.text import (
    END,
    VOCABULARY_FILE,
    WORDS,
    Tokenizer,
    build_vocabulary,
    save_vocabulary,
    split_words,
    vocabulary_bytes,
)

_STEP = "create_tfrecords"
_MAX_RAW_BYTES = 64 * 64 * 3
_RECORD_OVERHEAD_BYTES = 80  # Framing, field names and the key; an estimate, for sizing shards.
# What a worker takes at a time: little enough to keep all busy to the end, and the progress moving.
_TASK_EXAMPLES, _TASK_BYTES = 1024, 16 << 20
_SHOWN, _CLASSES_SHOWN = 5, 10
_DIGEST_BYTES = 32
_LISTED = 100  # Of bad inputs, when there are too many of them.


class _UnusableError(Exception):
    """An input that is to be set aside. The message is the reason, without its name."""


class _OddShapeError(Exception):
    """An image of another shape than the first one."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.shape = shape


@dataclasses.dataclass(frozen=True)
class _Stored:
    """An example as it is stored.

    Attributes:
        fields: Of its record, without label and key.
        counts: What its split's statistics add up.
        identity: Equal for equal examples.
        picture: Of images, what their look is taken from.
    """

    fields: Mapping[str, bytes | int]
    identity: bytes
    picture: np.ndarray | None = None
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)


class _Rule(Protocol):
    """How examples are checked and stored; travels to the workers."""

    @property
    def root(self) -> str:
        """Folder that file keys are relative to."""

    @property
    def input(self) -> ImageInput | TextInput:
        """What the manifest is to say of them."""

    @property
    def features(self) -> Mapping[str, str]:
        """The fields that `store` gives, and their types."""

    def store(self, content: Any, known: bytes | None) -> "_Stored":
        """What becomes of a file's bytes or an array's element.

        Args:
            content: These.
            known: What `identify` gives of `content`, where that is known.

        Raises:
            _UnusableError: If it is to be set aside.
            _OddShapeError: If it is of another shape than the others.
        """


@dataclasses.dataclass(frozen=True)
class _ImageRule:
    root: str
    image: ImageRule
    input: ImageInput

    @property
    def features(self) -> Mapping[str, str]:
        return {ImageInput.feature: "bytes"}

    def store(self, content: Any, known: bytes | None) -> "_Stored":
        try:
            payload, shape, pixels = self._encode(content)
        except UnreadableImageError as error:
            raise _UnusableError(str(error)) from error
        if shape != self.input.image_shape:
            raise _OddShapeError(shape)
        # Of what stays encoded the look alone tells that two files hold the same pixels.
        identity = known if known and pixels is content else identify(payload)
        return _Stored({ImageInput.feature: payload}, identity, thin_out(pixels))

    def _encode(self, content: Any) -> tuple[bytes, tuple[int, ...], np.ndarray]:
        if self.input.encoding == ENCODED:
            return check_encoded(content, self.image)
        if isinstance(content, bytes):
            pixels = decode_pixels(content, self.image)
        else:
            height, width, channels = self.input.image_shape
            pixels = resize_pixels(convert_pixels(content, channels), (height, width))
        return pixels.tobytes(), pixels.shape, pixels


@dataclasses.dataclass(frozen=True)
class _TextRule:
    root: str
    input: TextInput
    vocabulary: tuple[bytes, ...] = dataclasses.field(repr=False)

    @property
    def features(self) -> Mapping[str, str]:
        return {TextInput.feature: "bytes", TEXT_FEATURE: "bytes"}

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.input, self.vocabulary)

    def store(self, content: Any, known: bytes | None) -> "_Stored":
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise _UnusableError(f"not UTF-8: {error.reason} at byte {error.start}") from error
        encoded = self._tokenizer.encode(content)
        if not encoded.num_tokens:
            raise _UnusableError("no word in it")
        ids = encoded.ids.astype(np.dtype(self.input.stored_dtype).newbyteorder("<")).tobytes()
        wanted = self.input.num_tokens
        return _Stored(
            {TextInput.feature: ids, TEXT_FEATURE: content},
            known or identify(content),
            None,
            {
                "num_truncated": int(encoded.num_tokens > wanted),
                "num_padded": int(encoded.num_tokens < wanted),
                "num_tokens": min(encoded.num_tokens, wanted),
                "num_unknown": encoded.num_unknown,
            },
        )


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a worker made of a run of examples.

    Attributes:
        path: A file of framed records.
        kept: Which of the run these are, by their places in it.
        sizes: Bytes of each record.
        labels: The label of each.
        digests: The SHA-256 of each record, one after the other.
        bad: What was set aside.
        odd: The name and shape of an image unlike the others, which ends the writing.
        counts: What the split's statistics add up.
        identities: Eight bytes of each.
        looks: Of images, uint8[kept, 8, 9].
    """

    path: str
    kept: list[int] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    labels: list[Any] = dataclasses.field(default_factory=list)
    digests: bytes = b""
    bad: list[Quarantined] = dataclasses.field(default_factory=list)
    odd: tuple[str, tuple[int, ...]] | None = None
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    identities: bytes = b""
    looks: np.ndarray | None = None


def write_records(params: WriteParams, directory: Path, plan: DatasetPlan | None = None) -> WriteResult:
    """Write labelled examples as sharded TFRecord files with a manifest.

    Args:
        params: What to write.
        directory: Where; appears whole or not at all. Records that it already holds of the same source are replaced.
        plan: The plan of `params`, where the caller has it already.

    Returns:
        Counts, and the fingerprint of the content; the same whatever the number of workers.

    Raises:
        InputError: If the source cannot be used, too many inputs are unreadable, images differ in shape with no rule
            to resize them, the disk is too small, or `directory` holds something else.
    """
    plan = plan or plan_dataset(params)
    _check_target(directory, params.source)
    write: Callable[[Path], Manifest]
    rule: _Rule
    if plan.listing.corpus is not None:
        writer = CorpusWriter(plan.listing.corpus, params.target_shard_mib)
        bytes_each, write = writer.bytes_each, functools.partial(_write_corpus, plan, writer)
    else:
        words = None
        if plan.listing.kind == TEXT:
            plan, words, counts = _survey_texts(params, plan)
            rule, bytes_each = _choose_text_rule(params, plan.listing, counts)
        else:
            rule, bytes_each = _choose_image_rule(params, plan)
        write = functools.partial(_write_all, params, plan, rule, bytes_each, words)
    storage.require_free_bytes(directory, sum(plan.split_examples.values()) * bytes_each)
    with storage.staged_directory(directory) as staged:
        manifest = write(staged)
        manifest.save(staged)
    return WriteResult(
        num_examples=sum(split.num_examples for split in manifest.splits.values()),
        split_examples={name: split.num_examples for name, split in manifest.splits.items()},
        num_quarantined=len(manifest.quarantined),
        num_shards=sum(len(split.shards) for split in manifest.splits.values()),
        fingerprint=manifest.fingerprint,
    )


def _check_target(directory: Path, source: str) -> None:
    storage.require_writable(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return
    advice = "Choose another folder, or remove it."
    others = [file for file in directory.iterdir() if not _is_ours(file)]
    try:
        # Its shards are not looked at: where they are damaged, writing them again is the way out.
        held = json.loads((directory / MANIFEST_FILE).read_bytes())["source"] if not others else None
    except (OSError, ValueError, KeyError, TypeError):
        others = [directory / MANIFEST_FILE]
    if others:
        raise InputError(
            f"Refused to write into {directory}: expected an empty folder, received other files ({others[0].name!r}). "
            f"{advice}"
        )
    if held != source:
        raise InputError(
            f"Refused to write into {directory}: it already holds another data set. Expected {source!r}, received "
            f"{held!r}. {advice}"
        )


def _is_ours(file: Path) -> bool:
    ours = (MANIFEST_FILE, VOCABULARY_FILE, EXAMPLES_FILE, COPIES_FILE)
    return file.is_file() and (file.name in ours or file.suffix == ".tfrecord")


def _survey_texts(params: WriteParams, plan: DatasetPlan) -> tuple[DatasetPlan, np.ndarray, Counter[bytes]]:
    """Read every text once, before the vocabulary is made of those that train.

    Returns:
        The plan, with texts of the same words in one split if `join_copies` says so; uint64[num_examples], equal for
        such texts; and how often each word stands in those that train.
    """
    listing, planned = plan.listing, np.concatenate(list(plan.order.values()))
    splits = np.full(len(listing.keys), "", "<U10")
    for name, indices in plan.order.items():
        splits[indices] = name
    hashes, counts = _read_texts(params, listing, planned, splits == TRAIN)
    words = np.zeros(len(splits), "<u8")
    words[planned] = np.frombuffer(hashes, "<u8")
    if params.join_copies:
        planned.sort()
        joined = Copies.find(listing, planned, words[planned], np.empty((0, 2), int)).joined(splits)
        moved = planned[splits[planned] != joined[planned]]
        if len(moved):
            left, came = (moved[some[moved] == TRAIN] for some in (splits, joined))
            counts.subtract(_read_texts(params, listing, left, splits == TRAIN)[1])
            counts.update(_read_texts(params, listing, came, joined == TRAIN)[1])
            plan = plan.redivided(planned, joined[planned])
    return plan, words, +counts


def _read_texts(
    params: WriteParams, listing: Listing, examples: np.ndarray, are_counted: np.ndarray
) -> tuple[bytes, Counter[bytes]]:
    """What `_read_words` gives of some texts, in worker processes, by bool[num_examples] of those to count."""
    from joblib import Parallel, delayed

    hashes, counts = bytearray(), Counter[bytes]()
    chunks = [examples[i : i + _TASK_EXAMPLES] for i in range(0, len(examples), _TASK_EXAMPLES)]
    num_workers = min(params.num_workers or os.cpu_count() or 1, len(chunks))
    if not chunks:
        return b"", counts
    with progress.track(f"{_STEP} vocabulary", len(examples), "texts") as bar:
        runner = Parallel(num_workers, "sequential" if num_workers == 1 else "loky", return_as="generator")
        jobs = (
            delayed(_read_words)(listing.root, *_part_of(listing, chunk), are_counted[chunk].tolist())
            for chunk in chunks
        )
        with safe_children():
            for chunk, (hashed, counted) in zip(chunks, runner(jobs), strict=True):
                hashes += hashed
                counts.update(counted)
                bar.update(len(chunk))
    return bytes(hashes), counts


def _choose_text_rule(params: WriteParams, listing: Listing, counts: Counter[bytes]) -> tuple[_TextRule, int]:
    """How to store texts by the words of those that train, and the estimated bytes of a record."""
    if not counts:
        raise InputError(
            f"Found no word in the training texts of {listing.source!r}: expected UTF-8 text. Check the source."
        )
    vocabulary = build_vocabulary(counts, params.vocabulary_size)
    given = TextInput(
        num_tokens=params.num_tokens,
        vocabulary_size=params.vocabulary_size,
        vocabulary_sha256=hashlib.sha256(vocabulary_bytes(vocabulary)).hexdigest(),
        tokenization=WORDS,
        truncate=params.truncate,
    )
    sizes = [len(text) for text in listing.texts or ()] or [file.num_bytes for file in listing.files.values()]
    payload = sum(sizes) // len(sizes) + params.num_tokens * np.dtype(given.stored_dtype).itemsize
    return _TextRule(listing.root, given, vocabulary), payload + _RECORD_OVERHEAD_BYTES


def _part_of(listing: Listing, indices: np.ndarray) -> tuple[list[str], Any]:
    """The keys of some examples, and their content where the listing has it; else it is read from their files."""
    keys = [listing.keys[i] for i in indices]
    if listing.texts is not None:
        return keys, [listing.texts[i] for i in indices]
    return keys, None if listing.images is None else listing.images[indices]


def _read_words(
    root: str, keys: Sequence[str], texts: Sequence[bytes] | None, are_counted: Sequence[bool]
) -> tuple[bytes, Counter[bytes]]:
    """Eight bytes of each text's words, and how often each word stands in those to count; runs in a worker process.

    A text that cannot be read has no words in common with another, and what is not UTF-8 is not counted: both are for
    `store` to set aside.
    """
    hashes, counts = bytearray(), Counter[bytes]()
    for position, (key, is_counted) in enumerate(zip(keys, are_counted, strict=True)):
        try:
            text = storage.read_bytes(f"{root}/{key}") if texts is None else texts[position]
        except InputError:
            hashes += identify(key.encode())
            continue
        words = split_words(text)
        hashes += same_words(words)
        if is_counted and _is_utf8(text):
            counts.update(words)
    return bytes(hashes), counts


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _choose_image_rule(params: WriteParams, plan: DatasetPlan) -> tuple[_ImageRule, int]:
    """How to store images, judged by the first readable one, and the estimated bytes of a record."""
    listing = plan.listing
    size = (params.image_size[0], params.image_size[1]) if params.image_size else None
    image = ImageRule(size, params.channels)
    if listing.images is not None:
        height, width, channels = listing.images.shape[1:]
        shape = (*(size or (height, width)), params.channels or channels)
    else:
        shape = _first_shape(plan, image)
    raw_bytes = math.prod(shape)
    encoding = params.encoding
    if encoding == "auto":
        encoding = RAW if raw_bytes <= _MAX_RAW_BYTES or listing.images is not None else ENCODED
    if encoding == ENCODED and listing.images is not None:
        raise InputError(
            f"encoding='encoded' needs image files. Received arrays: {params.source!r}. Use 'raw' or 'auto'."
        )
    if encoding == RAW:
        payload = raw_bytes
    else:
        payload = sum(file.num_bytes for file in listing.files.values()) // len(listing.files)
    rule = _ImageRule(listing.root, image, ImageInput((shape[0], shape[1], shape[2]), encoding))
    return rule, payload + _RECORD_OVERHEAD_BYTES


def _first_shape(plan: DatasetPlan, image: ImageRule) -> tuple[int, int, int]:
    reason = ""
    for key in plan.listing.keys:
        try:
            height, width, channels = decode_pixels(
                storage.read_bytes(storage.join(plan.listing.root, key)), image
            ).shape
            return height, width, channels
        except (UnreadableImageError, InputError) as error:
            reason = reason or f"{key!r}: {error}"
    raise InputError(
        f"Found no readable image in {plan.listing.source!r}: expected JPEG, PNG or another image format, received "
        f"{len(plan.listing.keys)} files that are none (first: {reason}). Check the source."
    )


def _cut(
    order: Mapping[str, np.ndarray], bytes_each: int, target_shard_mib: int, task_examples: int
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Splits, names of shards and examples in order; a shard is one or more tasks."""
    for split, indices in order.items():
        shards = plan_shards(split, len(indices), len(indices) * bytes_each, target_shard_mib)
        for name, (start, end) in zip(shards.names, shards.boundaries, strict=True):
            for at in range(start, end, task_examples):
                yield split, name, indices[at : min(at + task_examples, end)]


def _write_all(
    params: WriteParams, plan: DatasetPlan, rule: _Rule, bytes_each: int, words: np.ndarray | None, staged: Path
) -> Manifest:
    from joblib import Parallel, delayed

    listing = plan.listing
    input_bytes = sum(file.num_bytes for file in listing.files.values()) // len(listing.keys)
    task_examples = min(max(_TASK_BYTES // max(bytes_each, input_bytes), 1), _TASK_EXAMPLES)
    tasks = list(_cut(plan.order, bytes_each, params.target_shard_mib, task_examples))
    num_workers = min(params.num_workers or os.cpu_count() or 1, len(tasks))
    total = sum(plan.split_examples.values())
    merger = _Merger(staged)
    with (
        tempfile.TemporaryDirectory(prefix=".parts.", dir=staged, ignore_cleanup_errors=True) as parts,
        progress.track(_STEP, total, "examples") as bar,
    ):
        jobs = (
            delayed(_write_part)(
                rule,
                os.path.join(parts, f"{number:06d}"),
                listing.labels[indices].tolist(),
                *_part_of(listing, indices),
                None if listing.hashes is None else [listing.hashes[i] for i in indices],
            )
            for number, (_, _, indices) in enumerate(tasks)
        )
        # One worker needs no second process; memory-mapping is off, since slices are small and copied once.
        runner = Parallel(
            n_jobs=num_workers,
            backend="sequential" if num_workers == 1 or total < task_examples else "loky",
            return_as="generator",
            batch_size=1,
            max_nbytes=None,
        )
        # Closed first when something fails, so that no worker still writes while its folder is removed. joblib warns
        # of the work that this throws away; the error that caused it says enough.
        with (
            safe_children(),
            warnings.catch_warnings(action="ignore", category=UserWarning),
            contextlib.closing(runner(jobs)) as written,
        ):
            for (split, name, indices), part in zip(tasks, written, strict=True):
                if part.odd is not None:
                    assert isinstance(rule.input, ImageInput)
                    raise _odd_shape_error(rule.input.image_shape, *part.odd)
                merger.add(split, name, indices, part, Path(part.path).read_bytes())
                os.unlink(part.path)
                bar.update(len(indices))
    copies, splits = merger.find_copies(listing, words)
    if params.join_copies and np.any((joined := copies.joined(splits)) != splits):
        splits, examples = joined, merger.examples
        merger = _regroup(params, plan.redivided(examples, joined[examples]), merger, bytes_each, staged)
    manifest = Manifest(
        fingerprint=merger.fingerprint(listing.class_names, rule),
        source=listing.source,
        split_rule=plan.split_rule,
        split_rule_version=SPLIT_RULE_VERSION,
        input=rule.input,
        task=params.task,
        features={**rule.features, LABEL_FEATURE: TASKS[params.task].stored_dtype, KEY_FEATURE: "bytes"},
        class_names=listing.class_names,
        splits=merger.splits(params.task, listing.class_names),
        quarantined=tuple(merger.bad),
    )
    _check_budget(params, plan, manifest)
    is_copy = copies.in_training_too(splits)
    save_identities(staged, merger.identities, {name: is_copy[some] for name, some in merger.stored().items()})
    storage.write_json(staged / COPIES_FILE, summary := copies.summary(splits))
    _say_content(manifest)
    _say_copies(manifest, summary, is_copy, splits)
    if isinstance(rule, _TextRule):
        save_vocabulary(rule.vocabulary, staged)
        _say_statistics(rule, manifest)
    return manifest


def _write_corpus(plan: DatasetPlan, writer: CorpusWriter, staged: Path) -> Manifest:
    listing, splits = plan.listing, {}
    for name, indices in plan.order.items():
        keys = [listing.keys[i] for i in indices.tolist()]
        ends = np.cumsum(listing.labels[indices]).tolist()
        spans = list(zip([0, *ends], ends, strict=False))
        splits[name] = writer.write(name, keys, spans, staged)
    return Manifest(
        fingerprint=writer.fingerprint(),
        source=listing.source,
        split_rule=plan.split_rule,
        input=writer.corpus.input,
        task=LANGUAGE_MODEL,
        features={CorpusInput.feature: "bytes", LABEL_FEATURE: "int64", KEY_FEATURE: "bytes"},
        class_names=listing.class_names,
        splits=splits,
    )


def _regroup(params: WriteParams, plan: DatasetPlan, before: "_Merger", bytes_each: int, staged: Path) -> "_Merger":
    """Write the records of a merger again, now as a plan has it: copied, since a record does not say its split."""
    after = _Merger(staged)
    after.bad = before.bad
    with tempfile.TemporaryDirectory(prefix=".before.", dir=staged) as folder:
        places: dict[int, tuple[memoryview, int, _Part, int]] = {}
        shards: dict[str, tuple[memoryview, int]] = {}
        for _, name, examples, part in before.written:
            if name not in shards:
                os.rename(staged / name, os.path.join(folder, name))
                shards[name] = np.memmap(os.path.join(folder, name), np.uint8, "r").data, 0
            shard, offset = shards[name]
            for number, (example, size) in enumerate(zip(examples.tolist(), part.sizes, strict=True)):
                places[example] = shard, offset, part, number
                offset += size
            shards[name] = shard, offset
        task_examples = min(max(_TASK_BYTES // bytes_each, 1), _TASK_EXAMPLES)
        for split, name, indices in _cut(plan.order, bytes_each, params.target_shard_mib, task_examples):
            moved = _Part("", kept=list(range(len(indices))))
            digests, identities, frames = bytearray(), bytearray(), []
            for shard, offset, part, number in (places[example] for example in indices.tolist()):
                moved.sizes.append(size := part.sizes[number])
                moved.labels.append(part.labels[number])
                digests += part.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]
                identities += part.identities[number * IDENTITY_BYTES : (number + 1) * IDENTITY_BYTES]
                frames.append(shard[offset : offset + size])
            part = dataclasses.replace(moved, digests=bytes(digests), identities=bytes(identities))
            after.add(split, name, indices, part, b"".join(frames))
    return after


class _Merger:
    """Appends parts to their shards, in order, and keeps the books."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._digest = hashlib.sha256()
        self._split = ""
        self._labels: dict[tuple[str, str], list[Any]] = {}
        self._crc: dict[tuple[str, str], int] = {}
        self._counts: dict[str, Counter[str]] = {}
        self.identities: dict[str, bytearray] = {}
        self.written: list[tuple[str, str, np.ndarray, _Part]] = []  # Split, shard, examples, what they became.
        self.bad: list[Quarantined] = []

    def add(self, split: str, name: str, indices: np.ndarray, part: _Part, content: bytes) -> None:
        """Append a run of examples to a shard: `content` is what the part's file holds."""
        with open(self._directory / name, "ab") as file:
            file.write(content)
        shard = split, name
        self._crc[shard] = google_crc32c.extend(self._crc.get(shard, 0), content)
        self._labels.setdefault(shard, []).extend(part.labels)
        if split != self._split:
            self._split = split
            self._digest.update(f"{split}\0".encode())
        # Record by record, so that the size of shards and tasks does not show.
        self._digest.update(part.digests)
        self.bad.extend(part.bad)
        self._counts.setdefault(split, Counter()).update(part.counts)
        self.identities.setdefault(split, bytearray()).extend(part.identities)
        self.written.append((split, name, indices[part.kept], part))

    @property
    def examples(self) -> np.ndarray:
        """int[kept]: the listing's examples in the order in which they are stored."""
        return np.concatenate([examples for _, _, examples, _ in self.written])

    def stored(self) -> dict[str, np.ndarray]:
        """The same for each split."""
        names = dict.fromkeys(split for split, *_ in self.written)
        return {
            name: np.concatenate([examples for split, _, examples, _ in self.written if split == name])
            for name in names
        }

    def find_copies(self, listing: Listing, words: np.ndarray | None) -> tuple[Copies, np.ndarray]:
        """The copies, and str[num_examples], the splits of all examples; of texts by uint64[num_examples] of words."""
        splits = np.full(len(listing.keys), "", "<U10")
        for split, _, examples, _ in self.written:
            splits[examples] = split
        kept = self.examples
        identities = np.frombuffer(b"".join(part.identities for *_, part in self.written), "<u8")
        looks = [part.looks for *_, part in self.written if part.looks is not None]
        near = find_alike(np.concatenate(looks)) if looks else np.empty((0, 2), int)
        if words is not None:
            near = pairs_of_equal(words[kept])
        return Copies.find(listing, kept, identities, near), splits

    def fingerprint(self, class_names: Sequence[str], rule: _Rule) -> str:
        self._digest.update(repr((class_names, rule.input)).encode())
        return self._digest.hexdigest()

    def splits(self, task: str, class_names: Sequence[str]) -> dict[str, Split]:
        result: dict[str, Split] = {}
        for split in dict.fromkeys(split for split, _ in self._labels):
            members = {name: labels for (of, name), labels in self._labels.items() if of == split}
            # Of a split whose every input was set aside nothing is left to count.
            labels = np.array([label for of_shard in members.values() for label in of_shard])
            is_regression = task == REGRESSION and len(labels)
            if is_regression and split == TRAIN:
                check_variation(labels, class_names)
            result[split] = Split(
                num_examples=len(labels),
                class_counts=() if task == REGRESSION else _count(task, labels, len(class_names)),
                targets=describe_targets(labels) if is_regression else (),
                shards=tuple(
                    Shard(name, len(labels), (self._directory / name).stat().st_size, f"{self._crc[split, name]:08x}")
                    for name, labels in members.items()
                ),
                statistics={**self._counts[split], **self._count_also_in_train(split)},
            )
        return result

    def _count_also_in_train(self, split: str) -> dict[str, int]:
        if split == TRAIN:
            return {}
        ours, trained = (np.frombuffer(self.identities.get(name, b""), "<u8") for name in (split, TRAIN))
        return {"num_also_in_train": int(np.isin(ours, trained).sum())}


def _count(task: str, labels: np.ndarray, num_classes: int) -> tuple[int, ...]:
    """Examples of every class."""
    if task == CLASSIFICATION:
        return tuple(np.bincount(labels.astype(int), minlength=num_classes).tolist())
    return tuple(labels.reshape(-1, num_classes).astype(int).sum(axis=0).tolist())


def _write_part(
    rule: _Rule, path: str, labels: Sequence[Any], keys: Sequence[str], contents: Any, hashes: Sequence[bytes] | None
) -> _Part:
    """Check and encode a run of examples, from their files where `contents` is None; runs in a worker process."""
    frames: list[bytes] = []
    digests, identities, pictures, looks = bytearray(), bytearray(), [], []
    part = _Part(path)
    for position, (key, label) in enumerate(zip(keys, labels, strict=True)):
        try:
            content = storage.read_bytes(f"{rule.root}/{key}") if contents is None else contents[position]
            stored = rule.store(content, hashes[position] if hashes else None)
        except (_UnusableError, InputError) as error:
            part.bad.append(Quarantined(key, str(error)))
            continue
        except _OddShapeError as error:
            return _Part(path, odd=(key, error.shape))
        frame = frame_record(encode_example({**stored.fields, LABEL_FEATURE: label, KEY_FEATURE: key.encode()}))
        digests += hashlib.sha256(frame).digest()
        identities += stored.identity
        frames.append(frame)
        part.kept.append(position)
        part.labels.append(label)
        if stored.counts:
            part.counts.update(stored.counts)
        if stored.picture is not None:
            pictures.append(stored.picture)
            if len(pictures) == LOOKED_AT_ONCE:
                looks.append(look_at(pictures))
                pictures = []
    if pictures:
        looks.append(look_at(pictures))
    with open(path, "wb") as file:
        file.writelines(frames)
    return dataclasses.replace(
        part,
        sizes=list(map(len, frames)),
        digests=bytes(digests),
        identities=bytes(identities),
        looks=np.concatenate(looks) if looks else None,
    )


def _odd_shape_error(expected: tuple[int, int, int], key: str, shape: Sequence[int]) -> InputError:
    if len(shape) == 3 and tuple(shape[:2]) == expected[:2]:
        kinds = {1: "grey", 3: "colour"}
        return InputError(
            f"Grey and colour images are mixed: expected {kinds[expected[2]]} images like the first one, received "
            f"the {kinds[shape[2]]} image {key!r}. Set data.channels to 1 or 3 to convert all of them."
        )
    return InputError(
        f"Images differ in size: expected {expected[0]}×{expected[1]} like the first one, received "
        f"{shape[0]}×{shape[1]} for {key!r}. Set data.image_size to [height, width] to resize all of them."
    )


def _say_statistics(rule: _TextRule, manifest: Manifest) -> None:
    given = rule.input
    side = "first" if given.truncate == END else "last"
    progress.say(
        _STEP, f"{len(rule.vocabulary):,} words known; of a longer text the {side} {given.num_tokens} tokens are kept"
    )
    for name, split in manifest.splits.items():
        told = split.statistics
        line = (
            f"{name}: {told['num_truncated']:,} of {split.num_examples:,} texts cut, {told['num_padded']:,} padded, "
            f"{told['num_unknown'] / told['num_tokens']:.2%} of the tokens kept unknown"
        )
        progress.say(_STEP, line)


def _say_copies(manifest: Manifest, summary: Mapping[str, Any], is_copy: np.ndarray, splits: np.ndarray) -> None:
    plural = manifest.input.plural
    if summary["sets"]:
        equal = f"{summary['exact']:,} {plural} are equal to another one, {summary['near']:,} nearly so"
        progress.say(_STEP, f"{equal}; {COPIES_FILE} lists them")
    for name, split in manifest.splits.items():
        if also := int(np.count_nonzero(is_copy & (splits == name))):
            here = f"{also:,} of {split.num_examples:,} {plural} in {name}"
            progress.say(_STEP, f"{here} stand in {TRAIN} too, equal or nearly so, and flatter the result")
    if summary["contradictory"]:
        first = summary["sets"][0]["examples"]
        shown = " and ".join(f"{one['key']!r} ({one['label']})" for one in first[:_SHOWN])
        progress.say(_STEP, f"{summary['contradictory']:,} sets of copies have several labels, the first: {shown}")


def _say_content(manifest: Manifest) -> None:
    """How many examples there are, of what, in which splits."""
    splits = manifest.splits
    line = f"{sum(split.num_examples for split in splits.values()):,} {manifest.input.plural}"
    if manifest.task in (CLASSIFICATION, MULTI_LABEL):
        counts = np.sum([split.class_counts for split in splits.values()], axis=0).tolist()
        named = [f"{name} {count:,}" for name, count in zip(manifest.class_names, counts, strict=True)]
        more = f" and {len(named) - _CLASSES_SHOWN} more" if len(named) > _CLASSES_SHOWN else ""
        line += f" of {len(named)} classes ({', '.join(named[:_CLASSES_SHOWN])}{more})"
    progress.say(_STEP, f"{line}: " + ", ".join(f"{name} {split.num_examples:,}" for name, split in splits.items()))


def _check_budget(params: WriteParams, plan: DatasetPlan, manifest: Manifest) -> None:
    bad, total = sorted(manifest.quarantined, key=lambda item: item.key), len(plan.listing.keys)
    for note in plan.listing.notes:
        progress.say(_STEP, note)
    are_too_many = len(bad) > params.max_bad_fraction * total
    for item in bad[: _LISTED if are_too_many else _SHOWN]:
        progress.say(_STEP, f"set aside {item.key!r}: {item.reason}")
    if are_too_many:
        listed = "; ".join(f"{item.key!r} ({item.reason})" for item in bad[:_SHOWN])
        raise InputError(
            f"{len(bad)} of {total} inputs are unreadable: {listed}{' …' if len(bad) > _SHOWN else ''}. Expected at "
            f"most {params.max_bad_fraction:.2%}. Repair or remove them, or raise data.max_bad_fraction."
        )
    for name in plan.order:
        if name not in manifest.splits or not manifest.splits[name].num_examples:
            raise InputError(f"The {name!r} split has no readable examples left after {len(bad)} were set aside.")
