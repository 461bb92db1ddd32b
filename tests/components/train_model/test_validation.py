"""The validation split is the same examples in the same order, held in RAM or read again in parts."""

import numpy as np
import pytest

from tpu_components.core.base.partition import WHOLE, Share
from tpu_components.core.examples.artifacts import VALIDATION, Manifest
from tpu_components.train_model import validation
from tpu_components.train_model.validation import ValidationSplit


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(validation, "PART_BYTES", 40 * 64)  # Of digits, 64 bytes each; parts begin with a batch.


@pytest.mark.parametrize("share", [WHOLE, Share(0, 2), Share(1, 2)])
def test_parts_are_the_same_examples_held_or_read_again(digits_records, small_parts, share):
    manifest = Manifest.load(digits_records, verify=False)
    held, read = (ValidationSplit(digits_records, manifest, 32, mib, share) for mib in (1, 0))
    assert held.held is not None
    assert read.held is None
    for _ in range(2):  # After every epoch.
        ours, theirs = list(held.parts()), list(read.parts())
        assert len(ours) == len(theirs) > 1
        for (places, one), (other_places, other) in zip(ours, theirs, strict=True):
            assert places == other_places
            assert np.array_equal(one.inputs, other.inputs)
            assert np.array_equal(one.labels, other.labels)
    seen = sum(len(examples.labels) for _, examples in ours)
    assert seen == len(share.within(manifest.split(VALIDATION).num_examples))


def test_hosts_have_as_many_places_though_one_has_an_example_less(digits_records, small_parts):
    """Else one would wait for the other's answers for good."""
    manifest = Manifest.load(digits_records, verify=False)
    num_examples = manifest.split(VALIDATION).num_examples
    for count, mib in ((2, 0), (3, 1), (num_examples - 1, 1)):
        hosts = [
            ValidationSplit(digits_records, manifest, count, mib, Share(index, count)) for index in range(count)[-2:]
        ]
        first, last = ([places for places, _ in host.parts()] for host in hosts)
        assert first == last
