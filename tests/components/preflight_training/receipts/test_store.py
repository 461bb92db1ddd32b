import json

import pytest

from tests.components.preflight_training.receipts.runs import predict, receive
from tpu_components.core.base.errors import InputError
from tpu_components.preflight_training.receipts.store import RECEIPTS_VARIABLE, Added, ReceiptStore, find_receipts


@pytest.fixture
def store(tmp_path):
    return ReceiptStore(str(tmp_path / "receipts"))


def _save(receipt, directory):
    directory.mkdir(parents=True)
    receipt.save(directory)
    return str(directory)


def test_run_counts_once_and_the_receipt_with_the_prediction_stays(store):
    measured, whole = receive(), receive(prediction=predict())
    assert store.load() == []
    assert store.digest() == ""
    assert store.add([measured, measured]) == Added(1, 0, 0)
    before = store.digest()
    assert store.add([whole, measured]) == Added(0, 1, 0)
    assert store.add([measured]) == Added(0, 0, 1)
    assert store.load() == [whole]
    assert store.digest() != before


def test_receipts_are_found_at_any_depth_and_in_other_stores(store, tmp_path):
    runs = [receive(ms) for ms in (11.0, 12.0, 13.0)]
    for number, receipt in enumerate(runs):
        _save(receipt, tmp_path / "bucket" / str(number) / "evaluation")
    (tmp_path / "bucket" / "0" / "model.json").write_text("{}")
    found = list(find_receipts(str(tmp_path / "bucket")))
    assert sorted(found, key=lambda receipt: receipt.step_ms.p50) == runs
    store.add(found)
    assert len(list(find_receipts(store.uri))) == 3
    assert list(find_receipts(str(tmp_path / "bucket" / "1" / "evaluation" / "receipt.json"))) == [runs[1]]


@pytest.mark.usefixtures("bucket")
def test_receipts_in_a_bucket():
    store = ReceiptStore("gs://bucket/receipts")
    assert store.load() == []
    store.add([receive(prediction=predict())])
    assert len(store.load()) == 1
    assert len(list(find_receipts(store.uri))) == 1


def test_unknown_fields_of_a_file_do_not_enter_the_store(store, tmp_path):
    raw = receive().as_dict() | {"class_names": ["secret"]}
    (tmp_path / "receipt.json").write_text(json.dumps(raw))
    store.add(find_receipts(str(tmp_path / "receipt.json")))
    assert "secret" not in (tmp_path / "receipts" / f"{receive().id}.json").read_text()


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"version": 1}', "\x00\xff", '{"metrics": 1}'])
def test_damaged_and_foreign_files_are_named(tmp_path, content):
    (tmp_path / "receipt.json").write_text(content)
    with pytest.raises(InputError, match=r"receipt\.json.*it is not a receipt of a training run.*Remove the file"):
        list(find_receipts(str(tmp_path)))


@pytest.mark.parametrize(
    ("place", "message"),
    [("nowhere", "nowhere"), ("empty", "Found no"), ("file.txt", "expected receipt"), ("x.json", "no such file")],
)
def test_places_without_receipts_are_rejected(tmp_path, place, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "model.txt").write_text("")
    (tmp_path / "file.txt").write_text("")
    with pytest.raises(InputError, match=message):
        list(find_receipts(str(tmp_path / place)))


def test_variable_names_the_store(monkeypatch, tmp_path):
    assert ReceiptStore.of_workspace(tmp_path).uri == f"{tmp_path}/receipts"
    assert ReceiptStore.of_environment() is None
    monkeypatch.setenv(RECEIPTS_VARIABLE, "gs://bucket/ours")
    assert ReceiptStore.of_workspace(tmp_path).uri == ReceiptStore.of_environment().uri == "gs://bucket/ours"
