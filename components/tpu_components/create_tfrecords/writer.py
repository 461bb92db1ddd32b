"""Reads every example once, checks it, and writes it to its shard. Shards are written in parallel."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import (
    COPIES_FILE,
    DATA_PAGE_FILE,
    KEY_FEATURE,
    LABEL_FEATURE,
    MANIFEST_FILE,
    TEXT_FEATURE,
    WEIGHT_FEATURE,
    Manifest,
)
from tpu_components.core.examples.example_ids import EXAMPLES_FILE, load_retired, save_identities
from tpu_components.core.examples.interface import TASKS
from tpu_components.core.examples.slice_values import SLICES_FILE, save_slices
from tpu_components.core.examples.text import VOCABULARY_FILE, save_vocabulary
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.create_tfrecords.copies import Copies
from tpu_components.create_tfrecords.data_page import choose_samples, render_page
from tpu_components.create_tfrecords.encoders import TextEncoder
from tpu_components.create_tfrecords.log_messages import (
    STEP,
    check_budget,
    check_classes,
    say_content,
    say_copies,
    say_corpus,
    say_losses,
    say_shares,
    say_statistics,
)
from tpu_components.create_tfrecords.merging import Merger, regroup
from tpu_components.create_tfrecords.parts import Written
from tpu_components.create_tfrecords.planning import plan_dataset, require_few
from tpu_components.create_tfrecords.preparing import Prepared, count_workers, list_common, prepare


def write_records(params: WriteParams, directory: str | Path, data_version: str = "") -> WriteResult:
    """Write labelled examples as sharded TFRecord files with a manifest.

    Args:
        params: Source to read, and how to divide it.
        directory: Folder to write. It is written completely or not at all. Existing records of the same source are
            replaced.
        data_version: Expected `source_version` of the data. A pipeline passes the version under which the platform's
            cache stores the records, so that records of changed data are not stored under an old version. If empty,
            any version is accepted.

    Returns:
        Counts, and the fingerprint of the content. They do not depend on the number of workers.

    Raises:
        InputError: If the source cannot be used or changes while it is read, too many inputs are unreadable, images
            differ in shape and no parameter sets one shape, the disk is too small, or `directory` contains other files.
    """
    directory = Location(directory).as_path()
    plan = plan_dataset(params, data_version=data_version)
    if plan.listing.stored is not None:  # A record that stays in its file cannot be left out.
        plan = dataclasses.replace(plan, params=dataclasses.replace(params, max_bad_fraction=0.0))
        require_few(plan.listing.bad, plan.listing.num_inputs, plan.params, "cannot be used")
    check_target(directory, params.source)
    return write_prepared(prepare(plan), directory)


def write_prepared(prepared: Prepared, directory: Path, parts: Written | None = None) -> WriteResult:
    """Write the records of a prepared plan. See `write_records`.

    Args:
        prepared: The plan.
        directory: Folder to write.
        parts: The parts that other machines have written, which are merged into the data set. With None, this machine
            writes every part.
    """
    if prepared.plan.listing.stored is None:
        storage.require_free_bytes(directory, prepared.plan.num_examples * prepared.bytes_each)
    with storage.staged_directory(directory) as staged:
        parts = parts or prepared.write(prepared.cut(count_workers(prepared.plan.params)), staged)
        manifest = write_files(prepared, parts, staged)
        prepared.plan.listing.require_unchanged()
        manifest.save(staged)
    return WriteResult(
        num_examples=sum(split.num_examples for split in manifest.splits.values()),
        split_examples={name: split.num_examples for name, split in manifest.splits.items()},
        num_quarantined=len(manifest.quarantined),
        num_shards=sum(len(split.shards) for split in manifest.splits.values()),
        fingerprint=manifest.fingerprint,
    )


def check_target(directory: Path, source: str) -> None:
    """Check that a folder can be written, and is empty or contains records of the same source.

    Raises:
        InputError: If the folder contains other files, or cannot be written.
    """
    storage.require_writable(directory)
    if not directory.exists() or not any(directory.iterdir()):
        return
    advice = "Choose another folder, or remove this one."
    others = [file for file in directory.iterdir() if not _is_ours(file)]
    try:
        # Its shards are not checked: if they are damaged, they must be written again anyway.
        held = typed_json.decode((directory / MANIFEST_FILE).read_bytes())["source"] if not others else None
    except (OSError, ValueError, KeyError, TypeError):
        others = [directory / MANIFEST_FILE]
    if others:
        raise InputError(
            f"Cannot write to {directory}: expected an empty folder, received other files ({others[0].name!r}). "
            f"{advice}"
        )
    if held != source:
        raise InputError(
            f"Cannot write to {directory}: it already contains another data set. Expected {source!r}, received "
            f"{held!r}. {advice}"
        )


def _is_ours(file: Path) -> bool:
    beside_shards = (MANIFEST_FILE, VOCABULARY_FILE, EXAMPLES_FILE, COPIES_FILE, SLICES_FILE, DATA_PAGE_FILE)
    return file.is_file() and (file.name in beside_shards or file.suffix == ".tfrecord")


def write_files(prepared: Prepared, parts: Written, staged: Path) -> Manifest:
    """Write shards and their metadata files to a folder. Return the manifest without writing it."""
    plan = prepared.plan
    encoder = prepared.encoder
    survey = prepared.survey
    params = plan.params
    listing = plan.listing
    merger = Merger(plan, staged)
    copies = None
    with (
        progress.track(STEP, plan.num_examples, "examples") as bar,
        contextlib.closing(parts) as written,
    ):
        for task, part in written:
            merger.add(task, part)
            bar.update(len(task.examples))
    if listing.corpus is None:
        # Pictures that have lost their content are copies of each other, so the next lines may raise an error.
        say_losses(merger.totals, len(merger.examples))
        copies = merger.find_copies(survey.words if survey else None)
        kept = copies.without_leaks() if params.join_copies else copies.splits
        if params.retired_tests:
            retired = {place: load_retired(place) for place in params.retired_tests}
            without_copies = kept
            kept = merger.without_retired(kept, retired)
            num_retired = np.count_nonzero(without_copies != kept)
            progress.say(STEP, f"left out {num_retired:,} examples of retired test sets")
        if np.any(kept != copies.splits):
            copies = dataclasses.replace(copies, splits=kept)
            examples = merger.examples
            merger = regroup(plan.redivided(examples, kept[examples]), merger, prepared.bytes_each, staged)
    kind = TASKS[params.asked]
    stored = listing.stored
    own = (TEXT_FEATURE,) if isinstance(encoder, TextEncoder) else ()
    manifest = Manifest(
        fingerprint=merger.fingerprint(encoder.input),
        source=params.source,
        split_rule=plan.split_rule,
        split_rule_version=plan.rule_version,
        input=encoder.input,
        task=kind.name,
        features={
            **dict.fromkeys((encoder.input.feature, *own), "bytes"),
            LABEL_FEATURE: kind.stored_dtype,
            **({} if stored else {KEY_FEATURE: "bytes"}),
            **({} if listing.weights is None else {WEIGHT_FEATURE: "float32"}),
        },
        class_names=listing.class_names,
        splits=merger.splits(),
        quarantined=(*listing.bad, *merger.bad),
        common_words=list_common(survey.counts) if survey else {},
        columns=params.columns,
        feature_names=stored.feature_names if stored else {},
        compression=stored.compression if stored else "",
    )
    check_budget(plan, manifest)
    if copies is None:
        say_corpus(manifest)
        return manifest
    check_classes(plan, manifest)
    return _describe_examples(prepared, manifest, merger, copies, staged)


def _describe_examples(
    prepared: Prepared, manifest: Manifest, merger: Merger, copies: Copies, staged: Path
) -> Manifest:
    """Write the metadata files next to the records. Return the manifest with the number of left-out examples."""
    plan = prepared.plan
    encoder = prepared.encoder
    stored = merger.by_split("examples")
    summary, is_copy = copies.summary(), copies.in_training_too()
    manifest = dataclasses.replace(manifest, num_left_out=summary["left_out"])
    save_identities(staged, merger.by_split("identities"), {name: is_copy[some] for name, some in stored.items()})
    save_slices(staged, plan.listing.slices, stored, merger.by_split("num_pixels"), plan.listing.groups)
    storage.write_json(staged / COPIES_FILE, summary)
    say_content(manifest)
    say_shares(plan, manifest)
    say_copies(manifest, summary, is_copy, copies.splits)
    samples = choose_samples(plan, stored)
    storage.write_bytes(staged / DATA_PAGE_FILE, render_page(manifest, summary, samples).encode())
    if isinstance(encoder, TextEncoder):
        save_vocabulary(encoder.vocabulary, staged)
        say_statistics(encoder, manifest)
    return manifest
