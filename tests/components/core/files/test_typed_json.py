"""JSON that somebody else may have written: refused in words wherever it is read."""

import json

import pytest

from tests.support.registered import write_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.core.files import typed_json
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.work.resume_state import ResumeState

HOSTILE = ["[" * 100_000, "[" * 500 + "]" * 500, '"\\ud800"', '{"a": "\\udfff"}', b"\xff\xfe", '{"a":', "5", "[5]"]


@pytest.mark.parametrize("content", HOSTILE[:-2])
def test_what_is_no_plain_json_is_a_value_error(content):
    with pytest.raises(ValueError, match=r"nested|surrogates|decode|Expecting"):
        typed_json.decode(content)


def test_names_of_any_language_and_lists_in_lists_are_read():
    value = {"a": ["\N{GRINNING FACE}", "ü"], "b": json.loads("[" * 99 + "]" * 99)}
    assert (
        typed_json.decode(json.dumps(value))
        == typed_json.decode(json.dumps(value, ensure_ascii=False).encode())
        == value
    )


@pytest.mark.parametrize("content", HOSTILE)
def test_files_of_a_registry_are_refused_in_words(tmp_path, content):
    registry = ModelRegistry(tmp_path / "registry", "digits")
    version = registry.register(*write_model(tmp_path, "weights"), metrics={}, reasons=[], lineage={})
    registry.promote(version.number, "champion", "better")
    for path in (version.directory / "version.json", registry.directory / "aliases.json"):
        path.unlink()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(InputError, match=path.name):
            registry.find("champion")


@pytest.mark.parametrize(
    ("field", "value"), [("metrics", 5), ("created", {}), ("digest", None), ("lineage", []), ("parent", [[1]])]
)
def test_a_version_with_a_field_of_another_type_is_refused(tmp_path, field, value):
    registry = ModelRegistry(tmp_path / "registry", "digits")
    version = registry.register(*write_model(tmp_path, "weights"), metrics={}, reasons=[], lineage={})
    path = version.directory / "version.json"
    changed = json.loads(path.read_text()) | {field: value}
    path.unlink()
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=rf"version\.json: expected .*{field} is "):
        registry.version(version.number)


@pytest.mark.parametrize("content", HOSTILE)
def test_what_is_finished_of_predictions_is_refused_in_words(tmp_path, content):
    begun = ResumeState(str(tmp_path))
    begun.begin("digest")
    begun.finish("0.csv", b"answers", {"file": {"name": "0.csv"}, "set_aside": [], "predicted": {"a": 1}})
    assert begun.read("0.csv").note["predicted"] == {"a": 1}
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "begun.json").write_bytes(content)
    (tmp_path / "notes" / "0.csv.json").write_bytes(content)
    assert not begun.holds("digest")
    with pytest.raises(InputError, match=r"notes/0\.csv\.json.*Remove"):
        begun.read("0.csv")


@pytest.mark.parametrize("content", HOSTILE)
def test_a_manifest_is_refused_in_words_here_and_in_a_bucket(bucket, tmp_path, content):
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "dataset.json").write_bytes(content)
    bucket.blob("records/dataset.json").upload_from_string(content)
    for place in (str(tmp_path), "gs://bucket/records"):
        with pytest.raises(InputError, match=r"dataset\.json: it is not"):
            Manifest.read_from(place)
