"""Plans the splits and the order of a data set before anything is written, so a bad source is rejected in seconds."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import SPLITS, TEST, TRAIN, VALIDATION, Quarantined
from tpu_components.core.examples.interface import CLASSIFICATION, REGRESSION
from tpu_components.core.sources.kinds import list_examples, require_version
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import check_variation
from tpu_components.create_tfrecords.splitting import (
    LEFT_OUT,
    SPLIT_RULE_VERSION,
    assign_splits,
    storage_order,
    tell_apart,
)

_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class DatasetPlan:
    """The examples of a source, their splits, and the order in which they are stored.

    Attributes:
        params: Parameters with which the records are written.
        listing: The examples.
        order: Examples of each split in stored order, as indices into the listing: int32, or int64 for at least 2³¹
            examples. Empty splits are left out.
        split_rule: Rule that assigns the splits, in words.
        rule_version: Version of that rule.
        whole: All examples in stored order, including `left_out`: indices into the listing.
        left_out: Examples that are in no split, because they are copies or are in retired test sets: int[…], indices
            into the listing.
    """

    params: WriteParams
    listing: Listing
    order: dict[str, np.ndarray]
    split_rule: str
    rule_version: int = SPLIT_RULE_VERSION
    whole: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, int))
    left_out: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, int))

    def redivided(self, examples: np.ndarray, splits: np.ndarray) -> "DatasetPlan":
        """Return a plan with the same listing and other splits.

        Examples that are not in `examples` are in no split.

        Args:
            examples: Indices into the listing, int[…].
            splits: Split of each of the `examples`, int8[…]: an index into `SPLITS`, or LEFT_OUT.
        """
        rank = np.empty_like(self.whole)
        rank[self.whole] = np.arange(len(rank), dtype=rank.dtype)
        by_rank = np.argsort(rank[examples])
        examples, splits = examples[by_rank], splits[by_rank]
        order = {name: examples[splits == number] for number, name in enumerate(SPLITS)}
        order = {name: indices for name, indices in order.items() if len(indices)}
        return dataclasses.replace(self, order=order, left_out=examples[splits == LEFT_OUT])

    @property
    def splits(self) -> np.ndarray:
        """Split of every example of the listing: int8[num_examples], indices into `SPLITS`, or LEFT_OUT."""
        return self.splits_of(self.order)

    def splits_of(self, order: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the split of every example of the listing, in the form of `splits`.

        Args:
            order: Examples by split name: int[…], indices into the listing. All other examples are LEFT_OUT.
        """
        splits = np.full(len(self.listing.keys), LEFT_OUT, np.int8)
        for name, indices in order.items():
            splits[indices] = SPLITS.index(name)
        return splits

    @property
    def split_examples(self) -> dict[str, int]:
        """Number of examples by split."""
        return {name: len(indices) for name, indices in self.order.items()}

    @property
    def num_examples(self) -> int:
        """Number of examples in all splits."""
        return sum(map(len, self.order.values()))


def _where(listing: Listing, params: WriteParams) -> str:
    """Return the end of an error message: advice about which data to add to a split.

    Return an empty string if there is no advice.
    """
    if params.group_column:
        return ", or use other groups"
    if params.task == CLASSIFICATION and params.stratify and listing.splits is None:
        return (
            f": the number of examples in the largest class is {np.bincount(listing.labels).max()}, and each split "
            "takes one example of every class"
        )
    return ""


def require_few(bad: Sequence[Quarantined], total: int, params: WriteParams, what: str) -> None:
    """Check that not too many inputs are quarantined.

    Args:
        bad: Quarantined inputs.
        total: Number of all inputs.
        params: Parameters of the records, with `max_bad_fraction`.
        what: Predicate of the error message, such as `are unreadable`.

    Raises:
        InputError: If the share of quarantined inputs is larger than `max_bad_fraction`.
    """
    if len(bad) > params.max_bad_fraction * total:
        raised = "raise data.max_bad_fraction"
        if not params.rewrite:
            raised = "set data.rewrite to true, which writes records without them if data.max_bad_fraction allows it"
        listed = "; ".join(f"{item.key!r} ({item.reason})" for item in bad[:_SHOWN])
        raise InputError(
            f"{len(bad)} of {total} inputs {what}: {listed}{' …' if len(bad) > _SHOWN else ''}. Expected at most "
            f"{params.max_bad_fraction:.2%}. Repair or remove them, or {raised}."
        )


def require_trained(params: WriteParams, listing: Listing, counts: Sequence[int], reason: str) -> None:
    """Check that every class has training examples, unless the user lists the classes in `class_names`.

    Args:
        params: Parameters of the records.
        listing: The examples of a classification.
        counts: Number of training examples of each class.
        reason: Sentence that explains why a class can be without training examples.

    Raises:
        InputError: If a class has no training examples.
    """
    known = np.bincount(listing.labels, minlength=len(counts)).tolist()
    lacking = {
        name: count for name, count, own in zip(listing.class_names, known, counts, strict=True) if count and not own
    }
    if lacking and not params.class_names:
        listed = ", ".join(f"{name!r} (of {count:,} examples)" for name, count in list(lacking.items())[:_SHOWN])
        raise InputError(
            f"Some classes of {params.source!r} have no training examples: {listed}"
            f"{' …' if len(lacking) > _SHOWN else ''}. {reason} Add examples of these classes. To keep the classes "
            "without training examples, list all classes in data.class_names."
        )


def plan_dataset(params: WriteParams, listing: Listing | None = None, data_version: str = "") -> DatasetPlan:
    """List the source and assign the splits, without reading image or text files.

    Args:
        params: Parameters of the records.
        listing: Listing of the source with these parameters. With None, the source is listed.
        data_version: Expected `source_version` of the listing. If empty, any version is accepted.

    Raises:
        InputError: If the source cannot be used or has another version, more inputs are unusable than
            `max_bad_fraction` allows, a requested split has no examples, a class has no training examples, or the
            training split has only weights of 0 or a constant regression target.
    """
    listing = listing or list_examples(params)
    require_version(params, listing, data_version)
    require_few(listing.bad, listing.num_inputs, params, "cannot be used")
    if listing.corpus is not None and listing.splits is not None:
        places = {name: np.flatnonzero(listing.splits == name) for name in listing.corpus.ids}
        return DatasetPlan(params, listing, places, listing.corpus.split_rule, rule_version=1)
    if listing.stored is not None:
        return _plan_stored(params, listing)
    identities: Sequence[str] = listing.identities or listing.keys
    apart = tell_apart(identities, listing.labels)
    splits, rule = assign_splits(
        identities if params.join_copies else apart,
        listing.labels,
        listing.splits,
        validation_fraction=params.validation_fraction,
        test_fraction=params.test_fraction,
        seed=params.seed,
        stratify=params.stratify and params.task == CLASSIFICATION,
        groups=listing.groups,
        have_forms=listing.has_ids,
    )
    order = storage_order(apart, params.seed)
    by_split = {name: order[splits[order] == number] for number, name in enumerate(SPLITS)}
    wanted_shares = {TRAIN: 1.0, VALIDATION: params.validation_fraction, TEST: params.test_fraction}
    for name, fraction in wanted_shares.items():
        if fraction and not len(by_split[name]):
            raise InputError(
                (
                    f"The {name!r} split has no examples: {params.source!r} has {len(listing.keys)} examples, divided "
                    f"by this rule: {rule}. Set data.{name}_fraction to a higher value or to 0, try another "
                    f"data.seed, or add data{_where(listing, params)}."
                )
                if name != TRAIN
                else (
                    f"The 'train' split of {params.source!r} has no examples. Add a train/ folder, or lower "
                    "data.validation_fraction and data.test_fraction."
                )
            )
    _check_training(params, listing, by_split[TRAIN])
    if params.task == CLASSIFICATION:
        counts = np.bincount(listing.labels[by_split[TRAIN]], minlength=len(listing.class_names))
        reason = f"Examples are split by this rule: {rule}. A different data.seed gives a different split."
        require_trained(params, listing, counts.tolist(), reason)
    return DatasetPlan(
        params, listing, {name: indices for name, indices in by_split.items() if len(indices)}, rule, whole=order
    )


def _plan_stored(params: WriteParams, listing: Listing) -> DatasetPlan:
    """Return a plan for existing records, which keep their splits, files and order.

    A training split is not required, because records without one can still be used for evaluation.
    """
    splits = listing.splits
    assert splits is not None
    order = {name: np.flatnonzero(splits == name).astype(np.int32) for name in SPLITS if name in splits}
    if TRAIN in order:
        _check_training(params, listing, order[TRAIN])
    rule = "the source's own " + ", ".join(sorted(order))
    return DatasetPlan(params, listing, order, rule, whole=np.concatenate([*order.values()]))


def _check_training(params: WriteParams, listing: Listing, training: np.ndarray) -> None:
    """Check that training examples do not all have weight 0 and that their regression targets vary.

    Args:
        params: Parameters of the records.
        listing: The examples.
        training: Training examples: int[…], indices into the listing.

    Raises:
        InputError: If all weights are 0, or a target of a regression is constant.
    """
    if params.task == REGRESSION:
        check_variation(listing.labels[training], listing.class_names)
    if listing.weights is not None and not listing.weights[training].any():
        raise InputError(
            f"All weights of training examples in {params.source!r} are 0, so there is nothing to learn. Correct the "
            f"column {params.columns['weight']!r}, or remove weight from data.columns."
        )
