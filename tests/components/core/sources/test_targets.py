import json

import numpy as np
import pytest

from tests.components.create_tfrecords.engines.cases import same_files
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.sources.targets import describe_targets, read_numbers
from tpu_components.create_tfrecords import WriteParams, plan_dataset, write_records

_IMAGES = np.random.default_rng(0).integers(0, 256, (60, 4, 4), np.uint8)


def _npz(folder, labels, **more):
    np.savez(folder / "data.npz", images=_IMAGES[: len(labels)], labels=labels, **more)
    return f"npz:{folder / 'data.npz'}"


def _csv(folder, text):
    from PIL import Image

    for i in range(5):
        Image.fromarray(_IMAGES[i]).save(folder / f"{i}.png")
    (folder / "data.csv").write_text(text)
    return f"csv:{folder / 'data.csv'}"


def _read(params, folder):
    """Everything that was written, by key, and the manifest."""
    write_records(params, folder / "records")
    manifest = Manifest.load(folder / "records")
    found = {}
    for split in manifest.splits:
        examples = records.load_split(folder / "records", manifest, split, with_keys=True)
        found |= dict(zip(examples.keys, examples.labels, strict=True))
    return found, manifest


def test_labels_of_a_csv_cell_become_a_row_of_truth_values(tmp_path):
    source = _csv(tmp_path, "path,label,split\n0.png,dog|cat,train\n1.png,,train\n2.png, cat ,train\n3.png,cow,test\n")
    found, manifest = _read(WriteParams(source, task="multi_label", validation_fraction=0.0), tmp_path)
    assert manifest.class_names == ("cat", "cow", "dog")
    assert {key: row.tolist() for key, row in found.items()} == {
        "0.png": [1, 0, 1],
        "1.png": [0, 0, 0],
        "2.png": [1, 0, 0],
        "3.png": [0, 1, 0],
    }
    assert manifest.splits["train"].class_counts == (2, 0, 1)
    assert manifest.splits["train"].num_examples == 3
    assert manifest.features == {"image": "bytes", "label": "int64", "key": "bytes"}
    assert next(iter(found.values())).dtype == np.float32


def test_columns_of_a_csv_file_become_numbers_with_their_statistics(tmp_path):
    rows = ("1.5,-1e3,train", "2.5,0,train", "5,7,train", "4,8,test", "3,9,test")
    source = _csv(tmp_path, "path,width,mass,split\n" + "".join(f"{i}.png,{row}\n" for i, row in enumerate(rows)))
    params = WriteParams(source, task="regression", target_columns=("mass", "width"), validation_fraction=0.0)
    found, manifest = _read(params, tmp_path)
    assert manifest.class_names == ("mass", "width")
    assert {key: row.tolist() for key, row in found.items()} == {
        "0.png": [-1000, 1.5],
        "1.png": [0, 2.5],
        "2.png": [7, 5],
        "3.png": [8, 4],
        "4.png": [9, 3],
    }
    assert manifest.features["label"] == "float32"
    width = manifest.splits["train"].targets[1]
    assert (width.mean, width.std, width.minimum, width.maximum) == (
        pytest.approx(3.0),
        pytest.approx(np.std([1.5, 2.5, 5])),
        1.5,
        5.0,
    )
    assert manifest.splits["train"].class_counts == ()
    assert manifest.interface.std == tuple(target.std for target in manifest.splits["train"].targets)
    assert json.loads((tmp_path / "records" / "dataset.json").read_text())["task"] == "regression"


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_an_array_of_truth_values_is_stored_as_it_is(tmp_path, dtype):
    labels = (np.random.default_rng(1).random((60, 3)) < 0.4).astype(dtype)
    names = ("a", "b", "c")
    found, manifest = _read(WriteParams(_npz(tmp_path, labels), task="multi_label", class_names=names), tmp_path)
    assert len(found) == 60
    for key, row in found.items():
        assert row.tolist() == labels[int(key.removeprefix("all/"))].tolist()
    total = np.sum([split.class_counts for split in manifest.splits.values()], axis=0)
    assert total.tolist() == labels.sum(axis=0).tolist()


@pytest.mark.parametrize("shape", [(60,), (60, 2)])
def test_an_array_of_numbers_is_stored_as_it_is(tmp_path, shape):
    targets = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    found, manifest = _read(WriteParams(_npz(tmp_path, targets), task="regression"), tmp_path)
    assert manifest.class_names == (("target",) if len(shape) == 1 else ("target_0", "target_1"))
    for key, row in found.items():
        np.testing.assert_array_equal(row, targets.reshape(60, -1)[int(key.removeprefix("all/"))])


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_what_has_no_one_class_is_divided_by_hash_and_says_so(tmp_path, task):
    labels = np.arange(60).reshape(-1, 1) % 2
    plan = plan_dataset(WriteParams(_npz(tmp_path, labels), task=task, stratify=True))
    assert (
        plan.split_rule == "test held out of the rest by hash, seed 0; validation held out of the rest by hash, seed 0"
    )
    assert sum(plan.split_examples.values()) == 60


def test_groups_stay_together_whatever_the_task(tmp_path):
    source = _csv(tmp_path, "path,label,who\n0.png,1,a\n1.png,2,a\n2.png,3,b\n3.png,4,b\n")
    splits = set()
    for seed in range(20):
        params = WriteParams(
            source,
            task="regression",
            group_column="who",
            validation_fraction=0.0,
            test_fraction=0.5,
            seed=seed,
        )
        try:
            plan = plan_dataset(params)
        except InputError:  # Both groups on one side.
            continue
        members = {frozenset(plan.listing.keys[i] for i in indices) for indices in plan.order.values()}
        splits.add(frozenset(members))
    assert splits == {frozenset({frozenset({"0.png", "1.png"}), frozenset({"2.png", "3.png"})})}


def test_the_same_bytes_whatever_the_number_of_workers(tmp_path):
    source = _npz(tmp_path, np.random.default_rng(1).normal(size=(60, 2)))
    one, two = (
        write_records(WriteParams(source, task="regression", num_workers=workers), tmp_path / f"{workers}")
        for workers in (1, 2)
    )
    assert one == two
    assert same_files(tmp_path / "1", tmp_path / "2")


def test_statistics_agree_with_numpy():
    values = np.random.default_rng(0).normal(2000, 0.01, (500, 3)).astype(np.float32)
    for target, column in zip(describe_targets(values), values.T.astype(np.float64), strict=True):
        assert (target.mean, target.std) == pytest.approx((column.mean(), column.std()), rel=1e-12)
        assert (target.minimum, target.maximum) == (column.min(), column.max())


@pytest.mark.parametrize(
    ("labels", "params", "message"),
    [
        (np.arange(60), {"task": "multi_label"}, r"expected uint8 or bool \[60, classes\].*received int64\[60\]"),
        (np.full((60, 2), 3), {"task": "multi_label"}, r"of 0 and 1.*between 3 and 3"),
        (np.zeros((60, 2), bool), {"task": "multi_label"}, "No example in .* has a label"),
        (
            np.ones((60, 2), bool),
            {"task": "multi_label", "class_names": ("a",)},
            r"expected one column for each of \['a'\], received 2 columns",
        ),
        (np.array(["a", "b"] * 30), {"task": "regression"}, r"expected numbers of shape \[60\].*received <U1\[60\]"),
        (
            np.full(60, np.nan),
            {"task": "regression"},
            "No example in .* can be used. For example, all/00000000: 'target' is missing",
        ),
        (
            np.arange(60) * 1e38,
            {"task": "regression"},
            r"Received: 4e\+38 in 'target' at all/00000004, .* of 56",
        ),
        (np.full(60, 2.5), {"task": "regression"}, "The target 'target' is 2.5 in all 60 training examples"),
        (
            np.ones((60, 2)),
            {"task": "regression", "target_columns": ("a",)},
            r"expected one column for each of \['a'\], received 2 columns",
        ),
    ],
)
def test_arrays_that_do_not_fit_the_task_are_refused_in_words(tmp_path, labels, params, message):
    params = {"validation_fraction": 0.0, "test_fraction": 0.0, **params}
    with pytest.raises(InputError, match=message):
        plan_dataset(WriteParams(_npz(tmp_path, labels), **params))


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        (
            "path,label\n0.png,1\n1.png,high\n",
            {"task": "regression"},
            r"line 3 of .*: expected a number in 'label'.*'high'",
        ),
        ("path,label\n0.png,1\n1.png,inf\n", {"task": "regression"}, "Received: inf in 'label' at line 3 of"),
        (
            "path,label\n0.png,1\n1.png,\n",
            {"task": "regression"},
            r"'line/00000003' \('label' is empty\).*raise data.max_bad_fraction",
        ),
        (
            "path,label\n0.png,1\n",
            {"task": "regression", "target_columns": ("mass",)},
            r"Missing columns in .*: 'mass'.*columns path \(or text\), mass",
        ),
        (
            "path,label\n0.png,cat;dog\n1.png,dog\n",
            {"task": "multi_label"},
            r"Expected '\|' between .*, received 'cat;dog'. Write '\|' between the labels",
        ),
        (
            "path,label\n0.png,cat\n1.png,cat|cow\n",
            {"task": "multi_label", "class_names": ("cat", "dog")},
            r"outside the class list: 'cow' \(first at 1.png\)",
        ),
    ],
)
def test_cells_that_do_not_fit_the_task_are_refused_with_their_line(tmp_path, text, params, message):
    params = {"validation_fraction": 0.0, "test_fraction": 0.0, **params}
    with pytest.raises(InputError, match=message):
        plan_dataset(WriteParams(_csv(tmp_path, text), **params))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"task": "multilabel"}, r"task='multilabel'.*Did you mean 'multi_label'\?"),
        ({"target_columns": ("a",)}, r"is not supported with task='classification'. Received: target_columns=\['a'\]"),
        ({"task": "regression", "class_names": ("a",)}, r"class_names is not supported with task='regression'"),
        (
            {"task": "regression", "target_columns": ("a", "a")},
            r"target_columns must not .* twice. Received: .*\['a', 'a'\]",
        ),
    ],
)
def test_params_that_do_not_go_together_are_refused(params, message):
    with pytest.raises(InputError, match=message):
        WriteParams("npz:data.npz", **params)


@pytest.mark.parametrize("source", ["images:/data", "idx:/data", "sklearn:digits", "keras:mnist"])
def test_a_source_of_classes_alone_is_refused_for_other_tasks(source):
    with pytest.raises(
        InputError,
        match=r"'regression' requires a csv:, .* source. Received: .*List the files",
    ):
        plan_dataset(WriteParams(source, task="regression"))


def test_targets_that_differ_too_little_for_float32_are_refused():
    values = np.array([[1.7e9], [1.7e9 + 1], [np.nan]])
    with pytest.raises(
        InputError, match=r"values of 'time' are too close together for float32, which rounds them by up to"
    ):
        read_numbers(values, ("time",), ("a", "b", "c"))
