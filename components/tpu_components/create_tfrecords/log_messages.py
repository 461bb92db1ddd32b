"""Log messages about the written data set, and a check that not too many inputs were quarantined."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from tpu_components.core.base import progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.formatting import quoted
from tpu_components.core.examples.artifacts import COPIES_FILE, SPLITS, TEST, TRAIN, VALIDATION, Manifest
from tpu_components.core.examples.images import describe_losses
from tpu_components.core.examples.interface import CLASSIFICATION, MULTI_LABEL
from tpu_components.core.examples.text import END
from tpu_components.create_tfrecords.encoders import TextEncoder
from tpu_components.create_tfrecords.planning import DatasetPlan, require_few, require_trained
from tpu_components.create_tfrecords.unknown_words import warn_of_unknown

STEP = "create_tfrecords"
_SHOWN, _CLASSES_SHOWN = 5, 10
_LISTED = 100  # Number of bad inputs to list if there are more than `max_bad_fraction` allows.


def say_statistics(encoder: TextEncoder, manifest: Manifest) -> None:
    """Log the vocabulary size, and how many texts of each split were truncated or padded. Warn about unknown words."""
    texts = encoder.input
    side = "first" if texts.truncate == END else "last"
    progress.say(
        STEP,
        f"vocabulary of {len(encoder.vocabulary):,} words. Texts with more than {texts.num_tokens} tokens keep only "
        f"their {side} {texts.num_tokens} tokens",
    )
    for name, split in manifest.splits.items():
        totals = split.statistics
        line = (
            f"{name}: {totals['num_truncated']:,} of {split.num_examples:,} texts truncated, {totals['num_padded']:,} "
            f"padded, {totals['num_unknown'] / totals['num_tokens']:.2%} of the kept tokens unknown"
        )
        progress.say(STEP, line)
    for name, split in manifest.splits.items():
        counts = split.statistics["num_unknown"], split.statistics["num_tokens"], split.num_examples
        warning = warn_of_unknown(name, *counts, texts, encoder.vocabulary)
        if warning and name != TRAIN:
            progress.say(STEP, f"warning: {warning}")


def say_corpus(manifest: Manifest) -> None:
    """Log how many characters and passages each split has."""
    for name, split in manifest.splits.items():
        characters, unknown = (split.statistics[count] for count in ("num_characters", "num_unknown"))
        passages = f"{split.num_examples:,} passages of {manifest.input.shape[0]} characters"
        line = f"{name}: {characters:,} characters, each predicted once, in {passages}"
        progress.say(STEP, f"{line}; {unknown:,} characters are not in the training split")


def say_copies(manifest: Manifest, summary: Mapping[str, Any], is_copy: np.ndarray, splits: np.ndarray) -> None:
    """Log how many examples are copies, and how many copies were left out.

    Also log how many held-out examples have a copy in the training split, and how many sets of copies have several
    labels.
    """
    plural = manifest.input.plural
    if summary["sets"]:
        equal = f"{summary['exact']:,} {plural} are exact copies of other {plural}, {summary['near']:,} are near copies"
        progress.say(STEP, f"{equal}. {COPIES_FILE} lists them")
    if summary["left_out"]:
        left_out = f"left out {summary['left_out']:,} {plural} with a copy in test or validation"
        progress.say(
            STEP, f"{left_out}. Set data.group_column to keep related examples, such as a series, in one split"
        )
    for name, split in manifest.splits.items():
        if also := int(np.count_nonzero(is_copy & (splits == SPLITS.index(name)))):
            here = f"{also:,} of {split.num_examples:,} {plural} in {name}"
            progress.say(STEP, f"{here} have an exact or near copy in {TRAIN}, so the metrics will be too high")
    if summary["contradictory"]:
        first = summary["sets"][0]["examples"]
        shown = " and ".join(f"{example['key']!r} ({example['label']})" for example in first[:_SHOWN])
        count = summary["contradictory"]
        sets = "1 set of copies has" if count == 1 else f"{count:,} sets of copies have"
        progress.say(STEP, f"{sets} several labels. The first: {shown}")


def say_losses(counts: Mapping[str, int], num_images: int) -> None:
    """Log how many images lost content when they were converted. See `describe_losses`."""
    for message in describe_losses(counts, num_images):
        progress.say(STEP, message)


def say_content(manifest: Manifest) -> None:
    """Log the number of examples in total, by class and by split, and the number of rotated photos."""
    splits = manifest.splits
    num_examples = sum(split.num_examples for split in splits.values())
    statistics = sum((Counter(split.statistics) for split in splits.values()), Counter[str]())
    line = f"{num_examples:,} {manifest.input.plural}"
    if manifest.task in (CLASSIFICATION, MULTI_LABEL):
        counts = np.sum([split.class_counts for split in splits.values()], axis=0).tolist()
        named = [f"{name} {count:,}" for name, count in zip(manifest.class_names, counts, strict=True)]
        more = f" and {len(named) - _CLASSES_SHOWN} more" if len(named) > _CLASSES_SHOWN else ""
        line += f" of {len(named)} classes ({', '.join(named[:_CLASSES_SHOWN])}{more})"
    if turned := statistics["num_turned"]:
        progress.say(
            STEP, f"rotated {turned:,} photos by their EXIF orientation. data.apply_rotation=false disables this"
        )
    progress.say(STEP, f"{line}: " + ", ".join(f"{name} {split.num_examples:,}" for name, split in splits.items()))


def say_shares(plan: DatasetPlan, manifest: Manifest) -> None:
    """Log the shares of the examples that are in the test and validation splits, and the requested shares.

    For a classification, also log which share of a class's examples is in each of these splits: the smallest and the
    largest share over all classes.
    """
    own = plan.listing.splits
    params = plan.params
    shown = []
    drawn = [split for name, split in manifest.splits.items() if own is None or name == TRAIN or name not in own]
    total = sum(split.num_examples for split in drawn)
    all_counts = np.sum([split.class_counts for split in drawn], axis=0)
    for name, wanted in ((TEST, params.test_fraction), (VALIDATION, params.validation_fraction)):
        if not wanted or name not in manifest.splits or (own is not None and name in own):
            continue
        split = manifest.splits[name]
        got = f"{split.num_examples / total:.1%}"
        if manifest.task == CLASSIFICATION:
            shares = np.array(split.class_counts)[all_counts > 0] / all_counts[all_counts > 0]
            got += f" ({shares.min():.1%} to {shares.max():.1%} of a class)"
        shown.append(f"{name} {got}, requested {wanted:.1%}")
    if shown:
        line = "; ".join(shown)
        progress.say(
            STEP,
            f"{line}. Except with small classes or few groups, the split of an example does not depend on other "
            "examples, so a test example does not become a training example when you add data",
        )


def check_budget(plan: DatasetPlan, manifest: Manifest) -> None:
    """Log the quarantined inputs with the reasons, and check that there are not too many.

    Raises:
        InputError: If the share of quarantined inputs is larger than `max_bad_fraction`, or a split has no examples
            left.
    """
    bad = sorted(manifest.quarantined, key=lambda item: item.key)
    total = plan.listing.num_inputs
    max_bad_fraction = plan.params.max_bad_fraction
    for note in plan.listing.notes:
        progress.say(STEP, note)
    shown = bad[: _LISTED if len(bad) > max_bad_fraction * total else _SHOWN]
    for item in shown:
        progress.say(STEP, f"quarantined {item.key!r}: {item.reason}")
    if len(bad) > len(shown):
        progress.say(STEP, f"quarantined {len(bad) - len(shown):,} more inputs. The manifest lists them")
    require_few(bad, total, plan.params, "are unreadable")
    for name in plan.order:
        if name not in manifest.splits or not manifest.splits[name].num_examples:
            raise InputError(
                f"The {name!r} split has no readable examples left after {len(bad)} were quarantined. Repair the "
                "quarantined inputs, or add readable examples."
            )


def check_classes(plan: DatasetPlan, manifest: Manifest) -> None:
    """Check that every class has training examples. For multi-label data, only warn about labels that have none.

    Raises:
        InputError: If a class has no training examples, and `class_names` does not list the classes.
    """
    if TRAIN not in manifest.splits or manifest.task not in (CLASSIFICATION, MULTI_LABEL):
        return
    counts = manifest.splits[TRAIN].class_counts
    if manifest.task == CLASSIFICATION:
        reason = (
            "Copies of test and validation examples are left out of training, and inputs that cannot be read are "
            "quarantined."
        )
        require_trained(plan.params, plan.listing, counts, reason)
    elif lacking := [name for name, count in zip(manifest.class_names, counts, strict=True) if not count]:
        progress.say(STEP, f"warning: these labels have no training examples: {quoted(lacking)}")
