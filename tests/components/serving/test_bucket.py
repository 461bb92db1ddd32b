"""A model from Cloud Storage, as Vertex hands it to a container: the real client against a local server."""

import shutil
from pathlib import Path

import pytest

from tests.support.signing_keys import write_keys
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.registry.signing import sign_version
from tpu_components.serving.params import ServeParams
from tpu_components.serving.server import load_export


@pytest.fixture
def signed(export_dir, tmp_path):
    """An export that is signed, and the public key."""
    private, public = write_keys(tmp_path / "keys")
    shutil.copytree(export_dir, tmp_path / "version" / "export")
    sign_version(tmp_path / "version", private)
    return tmp_path / "version" / "export", Path(public).read_text()


def test_model_is_fetched_from_its_bucket(bucket, start_container, export_dir, digits):
    storage.upload(export_dir, "gs://bucket/models/7")
    with start_container(AIP_STORAGE_URI="gs://bucket/models/7/", AIP_HTTP_PORT="0") as running:
        answer = running.predict({"instances": digits[:3].tolist()})
        assert (answer.status, len(answer.body["predictions"])) == (200, 3)


def test_what_is_loaded_is_a_verified_copy_that_nobody_changes_any_more(signed, digits, tmp_path):
    export, key = signed
    model = load_export(str(export), ServeParams(verify=key), tmp_path / "work")
    answers = model.predict(digits[:3])
    (export / "model.tflite").chmod(0o644)
    (export / "model.tflite").write_bytes(bytes((export / "model.tflite").stat().st_size))
    assert (model.predict(digits[:3]) == answers).all()
    assert (tmp_path / "work" / "verified" / "export" / "model.tflite").is_file()


@pytest.mark.parametrize("place", ["here", "gs://bucket/models/7"])
def test_nothing_is_loaded_whose_signature_does_not_hold(signed, bucket, tmp_path, place):
    export, key = signed
    (export / "export.json").unlink()
    (export / "export.json").write_text("no JSON, which whoever loads it would say")
    if place == "here":
        place = str(export)
    else:
        storage.upload(export, place)
    with pytest.raises(InputError, match=r"^Rejected .*changed: (export/)?export\.json"):
        load_export(place, ServeParams(verify=key), tmp_path / "work")


@pytest.mark.heavy
def test_a_container_serves_what_is_signed_by_the_key_in_its_variable(signed, bucket, start_container, digits):
    """Starts two servers."""
    export, key = signed
    storage.upload(export, "gs://bucket/models/7")
    variables = {"AIP_STORAGE_URI": "gs://bucket/models/7", "AIP_HTTP_PORT": "0", "TPU_PIPELINES_VERIFY_KEY": key}
    with start_container(**variables) as running:
        assert running.predict({"instances": digits[:3].tolist()}).status == 200
    bucket.blob("models/7/more").upload_from_string("")
    with pytest.raises(AssertionError, match=r"added: more"), start_container(**variables):
        pass
