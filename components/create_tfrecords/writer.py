"""Reads every example once, checks it, and writes it into its shard; shards are written in parallel."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from components import progress, storage
from components.artifacts import (
    KEY_FEATURE,
    LABEL_FEATURE,
    MANIFEST_FILE,
    TRAIN,
    Manifest,
    Quarantined,
    Shard,
    Split,
)
from components.create_tfrecords.params import WriteParams, WriteResult
from components.create_tfrecords.planning import DatasetPlan, plan_dataset
from components.create_tfrecords.sharding import plan_shards
from components.create_tfrecords.targets import check_variation, describe_targets
from components.errors import InputError
from components.images import (
    ImageRule,
    UnreadableImageError,
    check_encoded,
    convert_pixels,
    decode_pixels,
    resize_pixels,
)
from components.interface import CLASSIFICATION, REGRESSION, TASKS, ImageInput
from components.records import ENCODED, RAW, encode_example, frame_record

_STEP = "create_tfrecords"
_MAX_RAW_BYTES = 64 * 64 * 3
_RECORD_OVERHEAD_BYTES = 80  # Framing, field names and the key; an estimate, for sizing shards.
# What a worker takes at a time: little enough to keep all busy to the end, and the progress moving.
_TASK_EXAMPLES, _TASK_BYTES = 1024, 16 << 20
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class _Rule:
    """What a worker must know about every image."""

    root: str
    image: ImageRule
    encoding: str
    shape: tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class _Part:
    """What a worker made of a run of examples: one file of framed records, their labels, and the SHA-256 of each."""

    path: str
    labels: list[Any]
    digests: bytes
    bad: list[Quarantined]
    odd: tuple[str, tuple[int, ...]] | None


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
    rule, bytes_each = _choose_rule(params, plan)
    storage.require_free_bytes(directory, sum(plan.split_examples.values()) * bytes_each)
    with storage.staged_directory(directory) as staged:
        manifest = _write_all(params, plan, rule, bytes_each, staged)
        _check_budget(params, plan, manifest)
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
    return file.is_file() and (file.name == MANIFEST_FILE or file.suffix == ".tfrecord")


def _choose_rule(params: WriteParams, plan: DatasetPlan) -> tuple[_Rule, int]:
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
    # The first image says what channels all must have; see _store.
    rule = _Rule(listing.root, image, encoding, (shape[0], shape[1], shape[2]))
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


def _write_all(params: WriteParams, plan: DatasetPlan, rule: _Rule, bytes_each: int, staged: Path) -> Manifest:
    from joblib import Parallel, delayed

    listing = plan.listing
    input_bytes = sum(file.num_bytes for file in listing.files.values()) // len(listing.keys)
    task_examples = min(max(_TASK_BYTES // max(bytes_each, input_bytes), 1), _TASK_EXAMPLES)
    tasks = []  # (shard's name, indices) in order; a shard is one or more tasks.
    for split, indices in plan.order.items():
        shards = plan_shards(split, len(indices), len(indices) * bytes_each, params.target_shard_mib)
        for name, (start, end) in zip(shards.names, shards.boundaries, strict=True):
            for at in range(start, end, task_examples):
                tasks.append((split, name, indices[at : min(at + task_examples, end)]))
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
                [listing.keys[i] for i in indices],
                listing.labels[indices].tolist(),
                None if listing.images is None else listing.images[indices],
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
            warnings.catch_warnings(action="ignore", category=UserWarning),
            contextlib.closing(runner(jobs)) as written,
        ):
            for (split, name, indices), part in zip(tasks, written, strict=True):
                if part.odd is not None:
                    raise _odd_shape_error(rule, *part.odd)
                merger.add(split, name, part)
                bar.update(len(indices))
    return Manifest(
        fingerprint=merger.fingerprint(listing.class_names, rule),
        source=listing.source,
        split_rule=plan.split_rule,
        input=ImageInput(rule.shape, rule.encoding),
        task=params.task,
        features={
            ImageInput.feature: "bytes",
            LABEL_FEATURE: TASKS[params.task].stored_dtype,
            KEY_FEATURE: "bytes",
        },
        class_names=listing.class_names,
        splits=merger.splits(params.task, listing.class_names),
        quarantined=tuple(merger.bad),
    )


class _Merger:
    """Appends parts to their shards, in order, and keeps the books."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._digest = hashlib.sha256()
        self._split = ""
        self._labels: dict[tuple[str, str], list[Any]] = {}
        self._crc: dict[tuple[str, str], int] = {}
        self.bad: list[Quarantined] = []

    def add(self, split: str, name: str, part: _Part) -> None:
        content = Path(part.path).read_bytes()
        os.unlink(part.path)
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

    def fingerprint(self, class_names: Sequence[str], rule: _Rule) -> str:
        self._digest.update(repr((class_names, rule.encoding, rule.shape)).encode())
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
            )
        return result


def _count(task: str, labels: np.ndarray, num_classes: int) -> tuple[int, ...]:
    """Examples of every class."""
    if task == CLASSIFICATION:
        return tuple(np.bincount(labels.astype(int), minlength=num_classes).tolist())
    return tuple(labels.reshape(-1, num_classes).astype(int).sum(axis=0).tolist())


def _write_part(rule: _Rule, path: str, keys: Sequence[str], labels: Sequence[Any], images: np.ndarray | None) -> _Part:
    """Check and encode a run of examples; runs in a worker process."""
    frames: list[bytes] = []
    kept: list[Any] = []
    bad: list[Quarantined] = []
    digests: list[bytes] = []
    for position, (key, label) in enumerate(zip(keys, labels, strict=True)):
        try:
            if images is None:
                payload, shape = _store(storage.read_bytes(f"{rule.root}/{key}"), rule)
            else:
                payload, shape = _store_array(images[position], rule)
        except (UnreadableImageError, InputError) as error:
            bad.append(Quarantined(key, str(error)))
            continue
        if shape != rule.shape:
            return _Part(path, [], b"", [], (key, shape))
        fields = {ImageInput.feature: payload, LABEL_FEATURE: label, KEY_FEATURE: key.encode()}
        frame = frame_record(encode_example(fields))
        digests.append(hashlib.sha256(frame).digest())
        frames.append(frame)
        kept.append(label)
    with open(path, "wb") as file:
        file.writelines(frames)
    return _Part(path, kept, b"".join(digests), bad, None)


def _store(content: bytes, rule: _Rule) -> tuple[bytes, tuple[int, ...]]:
    if rule.encoding == ENCODED:
        return check_encoded(content, rule.image)
    pixels = decode_pixels(content, rule.image)
    return pixels.tobytes(), pixels.shape


def _store_array(pixels: np.ndarray, rule: _Rule) -> tuple[bytes, tuple[int, ...]]:
    pixels = resize_pixels(convert_pixels(pixels, rule.shape[2]), rule.shape[:2])
    return pixels.tobytes(), pixels.shape


def _odd_shape_error(rule: _Rule, key: str, shape: Sequence[int]) -> InputError:
    if len(shape) == 3 and tuple(shape[:2]) == rule.shape[:2]:
        kinds = {1: "grey", 3: "colour"}
        return InputError(
            f"Grey and colour images are mixed: expected {kinds[rule.shape[2]]} images like the first one, received "
            f"the {kinds[shape[2]]} image {key!r}. Set data.channels to 1 or 3 to convert all of them."
        )
    return InputError(
        f"Images differ in size: expected {rule.shape[0]}×{rule.shape[1]} like the first one, received "
        f"{shape[0]}×{shape[1]} for {key!r}. Set data.image_size to [height, width] to resize all of them."
    )


def _check_budget(params: WriteParams, plan: DatasetPlan, manifest: Manifest) -> None:
    bad, total = manifest.quarantined, len(plan.listing.keys)
    for item in bad[:_SHOWN]:
        progress.say(_STEP, f"set aside {item.key!r}: {item.reason}")
    if len(bad) > params.max_bad_fraction * total:
        listed = "; ".join(f"{item.key!r} ({item.reason})" for item in bad[:_SHOWN])
        raise InputError(
            f"{len(bad)} of {total} inputs are unreadable: {listed}{' …' if len(bad) > _SHOWN else ''}. Expected at "
            f"most {params.max_bad_fraction:.2%}. Repair or remove them, or raise data.max_bad_fraction."
        )
    for name in plan.order:
        if name not in manifest.splits or not manifest.splits[name].num_examples:
            raise InputError(f"The {name!r} split has no readable examples left after {len(bad)} were set aside.")
