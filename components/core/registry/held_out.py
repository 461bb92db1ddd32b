"""Gate decisions on one test set. They share one family-wise error rate: each uses a part of it, see `spend`.

    REGISTRY/MODEL/tests/TEST_SET/examples.npy   uint64[…]: all examples that it ever had, see `example_ids`
    REGISTRY/MODEL/tests/TEST_SET/DIGEST.json    decision on the model of this digest

Two concurrent decisions may get the same number, because there is no lock for a bucket. The family-wise error rate is
then exceeded by the part of one decision.
"""

import dataclasses
import datetime
import io
import json
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from tpu_components.core.base import typed_values
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage, typed_json
from tpu_components.core.files.unpacking import read_arrays

FOLDER, EXAMPLES_FILE = "tests", "examples.npy"
_SAME_SHARE = 0.5  # Share of the examples that an earlier decision was taken on, from which on it is the same test set.


@dataclasses.dataclass(frozen=True)
class PastDecision:
    """A decision of the gate on a model.

    Attributes:
        at: Time, UTC, ISO 8601.
        promoted: Whether the model was promoted.
        metrics: Its metrics on the test set, by name.
        rivals: Metrics of the promoted models that it was compared with, by digest.
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
    """A test set and the decisions that it has taken before, the oldest first.

    Attributes:
        place: Folder of all test sets of a model.
        name: Name of this one.
        examples: uint64[…]: all examples that it ever had, with those of today.
        before: Decisions on all test sets, before that on the model itself where it was judged before.
    """

    place: str
    name: str
    examples: np.ndarray
    before: tuple[PastDecision, ...]

    @classmethod
    def find(cls, place: str, identities: np.ndarray, model: str) -> Self:
        """Find the test set that has these examples; a new one where most of them were never tested.

        Args:
            place: Folder of all test sets of a registered model, here or in a bucket.
            identities: uint64[num_examples], see `example_ids`.
            model: Digest of the model that is to be judged.

        Raises:
            InputError: If a file of it cannot be read.
        """
        entries, sets = list[PastDecision](), dict[str, np.ndarray]()
        for file in storage.list_known(place):
            content = storage.read_bytes(storage.join(place, file.name))
            try:
                if file.name.endswith(EXAMPLES_FILE):
                    sets[file.name.partition("/")[0]] = read_arrays(file.name, content)[""]
                else:
                    entries.append(typed_values.read(typed_json.decode(content), PastDecision, file.name))
            except (ValueError, TypeError, KeyError, OSError) as error:
                raise InputError(
                    f"Cannot read {place}/{file.name}: expected a decision on a test set, received {error}. Restore it "
                    f"from a backup, or remove {place}: the decisions are counted anew then."
                ) from error
        own = next((entry.at for entry in entries if entry.model == model), _now())
        before = sorted((entry for entry in entries if entry.at < own), key=lambda entry: entry.at)
        shares = {name: float(np.isin(identities, some).mean()) for name, some in sets.items()}
        name = max(shares, key=lambda each: shares[each], default="")
        if shares.get(name, 0.0) < _SAME_SHARE:
            name = digest_of(np.sort(identities).tolist())[:16]
        examples = np.union1d(sets.get(name, np.empty(0, np.uint64)), identities).astype(identities.dtype)
        return cls(place, name, examples, tuple(before))

    @property
    def decisions(self) -> list[PastDecision]:
        """Decisions on this test set."""
        return [entry for entry in self.before if entry.test_set == self.name]

    @property
    def examples_uri(self) -> str:
        """File of the examples, for `data.retired_tests`."""
        return storage.join(self.place, f"{self.name}/{EXAMPLES_FILE}")

    def error_rate(self, whole: float, planned: int) -> float:
        """Return the significance level of the next gate decision on this test set; see `spend`.

        Args:
            whole: Significance level of all decisions together.
            planned: Number of planned decisions.
        """
        return spend(whole, planned, [entry.promoted for entry in self.decisions])

    def find_best(self, metric: str, sign: int) -> str:
        """Return the digest of the best model that was ever promoted, by its metric on this test set; empty if unknown.

        On a new test set it is the best one of the last.
        """
        known: dict[str, float] = {}
        for entry in self.decisions or [entry for entry in self.before if entry.test_set == self.before[-1].test_set]:
            models = {**entry.rivals, **({entry.model: entry.metrics} if entry.promoted else {})}
            known |= {digest: sign * metrics[metric] for digest, metrics in models.items() if metric in metrics}
        return max(known, key=lambda digest: known[digest], default="")

    def record(
        self, model: str, promoted: bool, metrics: Mapping[str, float], rivals: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Keep a decision; that on a model which was judged before stays as it is.

        Args:
            model: Digest of the model.
            promoted: Whether it is promoted.
            metrics: Its metrics.
            rivals: See `PastDecision`.
        """
        decision = PastDecision(_now(), promoted, metrics, rivals, self.name, model)
        uri = storage.join(self.place, f"{self.name}/{model[:32]}.json")
        if not storage.exists(uri):
            content = io.BytesIO()
            np.save(content, self.examples)
            storage.write_file(self.examples_uri, content.getvalue())
            storage.write_file(uri, json.dumps(dataclasses.asdict(decision), indent=2).encode())


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def spend(whole: float, planned: int, promoted: Sequence[bool]) -> float:
    """Return the significance level of the next decision on a test set, so that all together have the level `whole`.

    Decision k of n gets the share 1/k of the sum over all n, and what the last decision had, if that promoted: the
    online fallback procedure (Tian and Ramdas, Statistical Methods in Medical Research 30, 2021), which controls the
    rate of one or more false promotions whatever depends on what. From decision n on the share stays, and the sum is
    exceeded.

    Args:
        whole: Error rate of all decisions together.
        planned: Number of decisions, n.
        promoted: Whether the model was promoted, of every earlier decision.

    Example:
        >>> [round(spend(0.05, 52, [False] * earlier), 4) for earlier in (0, 9, 51)]
        [0.011, 0.0011, 0.0002]
    """
    unit = whole / sum(1 / k for k in range(1, planned + 1))
    rate = unit
    for k, was_promoted in enumerate(promoted, start=2):
        rate = unit / min(k, planned) + (rate if was_promoted else 0.0)
    return min(rate, whole)
