"""Decisions of a test set are counted, each once, and share the error rate."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.example_ids import ID_TYPE
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.registry.held_out import HeldOutSet, spend
from tpu_components.core.registry.reference import as_label

_EXAMPLES = np.arange(100, dtype="<u8")


@pytest.fixture
def place(tmp_path):
    return Location(tmp_path / "tests")


def _decide(place, model, accuracy, promoted, examples=_EXAMPLES, champion=("first", 0.9)):
    found = HeldOutSet.find(place, examples, model)
    found.record(model, promoted, {"accuracy": accuracy}, {champion[0]: {"accuracy": champion[1]}})
    return found


def test_all_decisions_together_have_the_whole_error_rate():
    for planned in (1, 2, 52):
        assert sum(spend(0.05, planned, [False] * k) for k in range(planned)) == pytest.approx(0.05)
    assert spend(0.05, 52, [False, True]) == pytest.approx(spend(0.05, 52, [False, False]) + spend(0.05, 52, [False]))
    assert spend(0.05, 1, [True, True]) == 0.05, "never more than all of it"


def test_a_repeated_evaluation_is_the_same_decision(place):
    rates = [_decide(place, model, 0.8, promoted=False).error_rate(0.05, 52) for model in "abab"]
    assert rates == [spend(0.05, 52, []), spend(0.05, 52, [False])] * 2
    assert len(HeldOutSet.find(place, _EXAMPLES, "c").decisions) == 2


def test_a_decision_on_another_test_set_is_none_on_this_one(place):
    other = np.arange(1000, 1100, dtype="<u8")
    _decide(place, "a", 0.8, promoted=False)
    _decide(place, "m", 0.8, promoted=False, examples=other)
    _decide(place, "b", 0.8, promoted=False)
    for _ in range(2):
        assert len(_decide(place, "m", 0.8, promoted=False).decisions) == 2, "a and b were judged on this one"
    assert len(HeldOutSet.find(place, _EXAMPLES, "c").decisions) == 3
    assert [entry.model for entry in HeldOutSet.find(place, other, "c").decisions] == ["m"]


def test_decisions_of_a_machine_whose_clock_is_ahead_are_counted(place, tmp_path):
    found = _decide(place, "a", 0.8, promoted=False)
    path = tmp_path / "tests" / found.name / "a.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"at": "2999-01-01T00:00:00.000000+00:00"}))
    for model in "bcb":
        numbers = {"b": 1, "c": 2}
        assert len(_decide(place, model, 0.8, promoted=False).decisions) == numbers[model]


def test_a_model_that_is_promoted_after_all_is_known_as_promoted_and_counts_once(place):
    _decide(place, "a", 0.95, promoted=False)
    _decide(place, "b", 0.8, promoted=False)
    assert len(_decide(place, "a", 0.95, promoted=True).decisions) == 0
    _decide(place, "a", 0.95, promoted=False)
    found = HeldOutSet.find(place, _EXAMPLES, "c")
    assert [(entry.model, entry.promoted) for entry in found.decisions] == [("a", True), ("b", False)]
    assert found.rank_promoted("accuracy", 1) == ["a", "first"]


@pytest.mark.parametrize("folder", [None, "bucket"])
def test_a_decision_that_came_meanwhile_is_counted_first(place, folder, request):
    if folder:
        request.getfixturevalue("bucket")
        place = Location("gs://bucket/digits/tests")
    first, second = (HeldOutSet.find(place, _EXAMPLES, model) for model in "ab")
    assert first.record("a", False, {}, {})
    assert not second.record("b", False, {}, {}), "it was judged as the first decision"
    again = HeldOutSet.find(place, _EXAMPLES, "b")
    assert again.record("b", False, {}, {})
    assert [entry.model for entry in HeldOutSet.find(place, _EXAMPLES, "c").decisions] == ["a", "b"]
    assert HeldOutSet.find(place, np.arange(500, 600, dtype="<u8"), "c").record("c", False, {}, {})


def test_a_decision_is_recorded_while_no_other_process_records_one(place, tmp_path):
    found = HeldOutSet.find(place, _EXAMPLES, "a")
    (tmp_path / "tests").mkdir()
    with ThreadPoolExecutor() as pool:
        with storage.locked(tmp_path / "tests" / ".lock"):
            recorded = pool.submit(found.record, "a", False, {}, {})
            with pytest.raises(TimeoutError):
                recorded.result(timeout=0.5)
        assert recorded.result()


def test_decisions_in_a_bucket_leave_no_folder_on_this_machine(bucket, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _decide(Location("gs://bucket/digits/tests"), "a", 0.8, promoted=False)
    assert list(tmp_path.iterdir()) == []


def test_files_of_other_programs_are_ignored(place, tmp_path):
    found = _decide(place, "a", 0.8, promoted=False)
    (tmp_path / "tests" / "README.md").write_text("Do not delete.")
    (tmp_path / "tests" / found.name / "a.json~").write_text("")
    assert len(HeldOutSet.find(place, _EXAMPLES, "b").decisions) == 1


def test_a_decision_that_cannot_be_written_is_an_error(place, tmp_path):
    found = HeldOutSet.find(place, _EXAMPLES, "a")
    (tmp_path / "tests").write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"Cannot record the gate's decision in .*a\.json: .* not promoted\. Allow"):
        found.record("a", True, {}, {})


def test_the_best_of_all_that_were_promoted_is_known_also_on_a_fresh_test_set(place):
    for model, accuracy, promoted in (("a", 0.95, True), ("b", 0.97, False), ("c", 0.94, True)):
        _decide(place, model, accuracy, promoted)
    grown = HeldOutSet.find(place, np.arange(50, 190, dtype="<u8"), "d")
    ranked = ["a", "c", "first"]
    assert (len(grown.decisions), grown.rank_promoted("accuracy", 1)) == (0, ranked), "most were never tested"
    grown = HeldOutSet.find(place, np.arange(0, 190, dtype="<u8"), "d")
    assert (len(grown.decisions), grown.rank_promoted("accuracy", 1)) == (3, ranked), "half of them were tested"
    assert grown.rank_promoted("accuracy", -1) == ranked[::-1]
    assert grown.rank_promoted("loss", -1) == []


def test_a_model_is_one_whether_its_digest_is_whole_or_a_label(place):
    model, better = "a" * 64, "b" * 64
    _decide(place, model, 0.95, promoted=True)
    _decide(place, better, 0.94, promoted=True, champion=(as_label(model), 0.9))
    assert HeldOutSet.find(place, _EXAMPLES, "c").rank_promoted("accuracy", 1)[0] == as_label(better)


def test_a_test_set_stays_the_same_while_it_grows_a_little_each_time(place):
    for size in itertools.accumulate([100] + [20] * 15):
        found = _decide(place, f"{size}", 0.8, promoted=False, examples=np.arange(size - 100, size, dtype="<u8"))
    assert len(found.decisions) == 15
    assert len(found.examples) == size


def test_a_converted_file_counts_together_with_the_test_set_that_was_begun_before(place, tmp_path):
    """The warning asks to convert the file only after the first decision that did not count it."""
    earlier, changed = np.zeros(100, ID_TYPE), np.zeros(100, ID_TYPE)
    earlier["scheme1"], changed["scheme1"] = np.arange(1, 101), np.arange(501, 601)
    changed["scheme2"] = np.arange(901, 1001)
    old = _decide(place, "a", 0.9, promoted=True, examples=earlier["scheme1"])
    new = _decide(place, "b", 0.8, promoted=False, examples=changed)
    assert (new.name == old.name, len(new.decisions)) == (False, 0)
    earlier["scheme2"] = changed["scheme2"]
    np.save(tmp_path / "tests" / old.name / "examples.npy", earlier)
    found = _decide(place, "c", 0.8, promoted=False, examples=changed)
    assert [entry.model for entry in found.decisions] == ["a", "b"]
    again = HeldOutSet.find(place, changed, "a")
    assert (again.same.model, again.decisions, again.record("a", False, {}, {})) == ("a", [], True)


def test_a_damaged_decision_is_named(place, tmp_path):
    found = _decide(place, "a", 0.95, promoted=True)
    (tmp_path / "tests" / found.name / "a.json").write_text("[]")
    with pytest.raises(InputError, match=r"a\.json: expected a decision on a test set"):
        HeldOutSet.find(place, _EXAMPLES, "b")


def test_a_decision_without_a_time_zone_is_damaged(place, tmp_path):
    file = tmp_path / "tests" / _decide(place, "a", 0.95, promoted=True).name / "a.json"
    file.write_text(file.read_text().replace("+00:00", ""))
    with pytest.raises(InputError, match=r"a\.json: .* \(the time \S+ has no time zone\)"):
        HeldOutSet.find(place, _EXAMPLES, "b")
