"""Records of test sets, and of the gate's decisions on each test set.

The decisions on a test set are numbered, and share one family-wise error rate; see `spend`.

    REGISTRY/MODEL/tests/TEST_SET/examples.npy   IDs of all examples that the test set has had, ID_TYPE[…]
    REGISTRY/MODEL/tests/TEST_SET/DIGEST.json    decision on the model with this digest

`example_ids` defines the IDs. A decision is recorded before its model can be promoted. Each decision is counted once,
whatever its result, even if the evaluation is repeated. If another process records a decision after the gate has
counted the decisions, the gate decides again with the next number. Buckets have no locks, so two simultaneous decisions
may get the same number in a bucket.
"""

import contextlib
import dataclasses
import datetime
import io
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from tpu_components.core.base import progress, typed_values
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.retries import PlatformError
from tpu_components.core.examples.example_ids import are_among, as_ids, join_ids
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.location import Location
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.registry.reference import as_label

FOLDER, EXAMPLES_FILE = "tests", "examples.npy"
_SAME_SHARE = 0.5  # A test set counts as an earlier one if at least this share of its examples is in it.


@dataclasses.dataclass(frozen=True)
class PastDecision:
    """A recorded decision of the gate on a model.

    Attributes:
        at: Time of the decision, UTC, ISO 8601.
        promoted: Whether the model was promoted.
        metrics: Metrics of the model on the test set, by name.
        rivals: Metrics, on the test set, of the promoted models that the model was compared with, as {digest: {name:
            value}}.
        test_set: Name of the test set.
        model: Digest of the model.
    """

    at: str
    promoted: bool
    metrics: Mapping[str, float]
    rivals: Mapping[str, Mapping[str, float]]
    test_set: str
    model: str


@dataclasses.dataclass(frozen=True)
class HeldOutSet:
    """A test set, and the gate's earlier decisions.

    Attributes:
        place: Folder of all test sets of a registered model.
        name: Name of this test set.
        examples: IDs of all examples that the test set has ever had, including the current ones, ID_TYPE[…].
        before: Earlier decisions on all test sets, oldest first. If this test set was already used to judge the model,
            only decisions before that judgement.
        same: Earlier decision about the same model on this test set, or None if there is none.
        names: `name`, and the names of all other recorded test sets that contain at least half of the current examples.
            Usually, `name` is the only one. There are others if this test set was recorded as new because the IDs of an
            earlier release could not be compared, and these IDs have been converted since.
        files: Names of all files in `place` when they were read.
    """

    place: Location
    name: str
    examples: np.ndarray
    before: tuple[PastDecision, ...]
    same: PastDecision | None
    names: frozenset[str]
    files: frozenset[str]

    @classmethod
    def find(cls, place: Location, identities: np.ndarray, model: str) -> Self:
        """Return the recorded test set that contains at least half of the examples, or a new test set if there is none.

        Args:
            place: Folder of all test sets of a registered model, local or in a bucket.
            identities: IDs of the examples, ID_TYPE[num_examples], or uint64[num_examples] for data sets from earlier
                versions.
            model: Digest of the model that the gate judges.

        Raises:
            InputError: If a file in `place` cannot be read.
        """
        identities = as_ids(identities)
        entries = list[PastDecision]()
        sets = dict[str, np.ndarray]()
        files = storage.list_known(place)
        for file in files:
            if not file.name.endswith((".json", EXAMPLES_FILE)):
                continue  # A file of an editor or a note, not of this registry.
            content = storage.read_bytes(place.child(file.name))
            try:
                if file.name.endswith(EXAMPLES_FILE):
                    sets[file.name.partition("/")[0]] = as_ids(read_arrays(file.name, content)[""])
                else:
                    entries.append(typed_values.read(typed_json.decode(content), PastDecision, file.name))
                    if datetime.datetime.fromisoformat(entries[-1].at).tzinfo is None:
                        raise ValueError(f"the time {entries[-1].at} has no time zone")
            except (ValueError, TypeError, KeyError, OSError) as error:
                raise InputError(
                    f"Cannot read {place}/{file.name}: expected a decision on a test set, or its example IDs, "
                    f"received something else ({error}). Restore the file from a backup, or remove {place} to start "
                    "counting decisions again."
                ) from error
        shares = {name: float(are_among(identities, some).mean()) for name, some in sets.items()}
        name = max(shares, key=lambda each: shares[each], default="")
        if shares.get(name, 0.0) < _SAME_SHARE:
            if old := [each for each, ids in sets.items() if not ids["scheme2"].any()]:
                _say_old_ids(place.child(f"{old[0]}/{EXAMPLES_FILE}"), len(old))
            newest = np.where(identities["scheme2"] != 0, identities["scheme2"], identities["scheme1"])
            name = digest_of(np.sort(newest).tolist())[:16]
        names = frozenset({name, *(each for each, share in shares.items() if share >= _SAME_SHARE)})
        examples = join_ids(identities, *([sets[name]] if name in sets else []))
        entries.sort(key=lambda entry: (entry.at, entry.model))
        same = next((entry for entry in entries if entry.model == model and entry.test_set in names), None)
        before = entries[: entries.index(same)] if same else entries
        return cls(place, name, examples, tuple(before), same, names, frozenset(file.name for file in files))

    @property
    def decisions(self) -> list[PastDecision]:
        """Earlier decisions on this test set."""
        return [entry for entry in self.before if entry.test_set in self.names]

    @property
    def examples_uri(self) -> str:
        """Path of the file with the IDs of the examples, for the setting `data.retired_tests`."""
        return self.place.child(f"{self.name}/{EXAMPLES_FILE}")

    def error_rate(self, whole: float, planned: int) -> float:
        """Return the significance level of the next gate decision on this test set; see `spend`.

        Args:
            whole: Significance level of all decisions together.
            planned: Number of planned decisions.
        """
        return spend(whole, planned, [entry.promoted for entry in self.decisions])

    def rank_promoted(self, metric: str, sign: int) -> list[str]:
        """Return the digests of the promoted models, shortened by `as_label`, the best on this test set first.

        Models without this metric are left out. If this test set has no decisions yet, the models are ranked on the
        test set of the last decision instead.

        Args:
            metric: Name of the metric.
            sign: 1 if larger values of the metric are better, or -1 if smaller values are better.
        """
        known: dict[str, float] = {}
        for entry in self.decisions or [entry for entry in self.before if entry.test_set == self.before[-1].test_set]:
            models = {**entry.rivals, **({entry.model: entry.metrics} if entry.promoted else {})}
            measured = {as_label(digest): metrics for digest, metrics in models.items() if metric in metrics}
            known |= {label: sign * metrics[metric] for label, metrics in measured.items()}
        return sorted(known, key=lambda digest: known[digest], reverse=True)

    def record(
        self, model: str, promoted: bool, metrics: Mapping[str, float], rivals: Mapping[str, Mapping[str, float]]
    ) -> bool:
        """Record a decision, unless another process has recorded a decision on this test set after `self` was read.

        A repeated decision on the same model and test set keeps its time and therefore its number. The record is
        changed only if the new decision promotes the model and the recorded decision did not.

        Args:
            model: Digest of the model.
            promoted: Whether the model is promoted.
            metrics: Metrics of the model.
            rivals: See `PastDecision`.

        Returns:
            True if the decision is recorded. False if another process has recorded a decision first, so that the number
            of this decision has changed. Then call `find` and decide again.

        Raises:
            InputError: If the decision cannot be written.
            PlatformError: If the bucket does not respond.
        """
        if self.same and (self.same.promoted or not promoted):
            return True
        test_set = self.same.test_set if self.same else self.name
        uri = self.place.child(f"{test_set}/{model[:32]}.json")
        try:
            with self._lock():
                new = {file.name for file in storage.list_known(self.place)} - self.files
                if not self.same and any(
                    file.partition("/")[0] in self.names and file.endswith(".json") for file in new
                ):
                    return False
                content = io.BytesIO()
                np.save(content, self.examples)
                storage.write_file(self.examples_uri, content.getvalue())
                at = self.same.at if self.same else self._next_time()
                decision = PastDecision(at, promoted, metrics, rivals, test_set, model)
                storage.write_file(uri, json.dumps(dataclasses.asdict(decision), indent=2).encode())
        except (OSError, InputError, PlatformError) as error:
            kind = PlatformError if isinstance(error, PlatformError) else InputError
            raise kind(
                f"Cannot record the gate's decision in {uri}: {str(error).rstrip('.')}. A decision that is not "
                "recorded is not counted, so the model is not promoted. Allow this step to write to that place, and "
                "run the step again."
            ) from error
        return True

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Prevent other processes from recording a decision during the block. For a bucket, do nothing."""
        if self.place.is_remote:
            yield
            return
        Path(self.place).mkdir(parents=True, exist_ok=True)
        with storage.locked(Path(self.place) / ".lock"):
            yield

    def _next_time(self) -> str:
        """Return the time of a new decision, ISO 8601: the current time, but always after the last decision.

        The order of the times determines the numbers of the decisions.
        """
        now = datetime.datetime.now(datetime.UTC)
        if self.before:
            last = datetime.datetime.fromisoformat(self.before[-1].at)
            now = max(now, last + datetime.timedelta(microseconds=1))
        return now.isoformat(timespec="microseconds")


def _say_old_ids(file: str, count: int) -> None:
    progress.say(
        "evaluate_model",
        f"Warning: this test set counts as a new one. {count} test sets from an earlier version, such as {file}, "
        "have IDs that depend on the settings of the records (image_size, encoding …). If this test set is one of "
        "them, write the records once with the original settings and convert the file: python -m "
        f"tpu_components.create_tfrecords.convert_ids RECORDS {shlex.quote(file)}",
    )


def spend(whole: float, planned: int, promoted: Sequence[bool]) -> float:
    """Return the significance level of the next decision on a test set.

    All planned decisions share the error rate `whole`. Decision k of n gets a level proportional to 1/k. If the
    previous decision promoted its model, the level of that decision is added. This online fallback procedure (Tian and
    Ramdas, Statistical Methods in Medical Research 30, 2021) controls the family-wise error rate under any dependence.
    Decisions after decision n get the level of decision n. With them, the family-wise error rate exceeds `whole`.

    Args:
        whole: Family-wise error rate of all planned decisions.
        planned: Number of planned decisions, n.
        promoted: Whether each earlier decision promoted its model.

    Example:
        >>> [round(spend(0.05, 52, [False] * earlier), 4) for earlier in (0, 9, 51)]
        [0.011, 0.0011, 0.0002]
    """
    unit = whole / sum(1 / k for k in range(1, planned + 1))
    rate = unit
    for k, was_promoted in enumerate(promoted, start=2):
        rate = unit / min(k, planned) + (rate if was_promoted else 0.0)
    return min(rate, whole)
