import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.registered import write_model
from tests.support.signing_keys import write_keys
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.signing import (
    fetch_verified,
    public_key_text,
    sign_version,
    try_keys,
    verify_export,
    verify_folder,
    verify_version,
)
from tpu_components.core.registry.versions import Version, describe_file, digest_listing

_FACTS = {"metrics": {}, "reasons": [], "lineage": {}}


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def registered(keys, tmp_path_factory):
    """Two signed versions, which tests only read."""
    folder = tmp_path_factory.mktemp("signed")
    registry = ModelRegistry(folder / "registry", "digits")
    for weights in ("one", "two"):
        registry.register(*write_model(folder / weights, weights), **_FACTS, card="A card.\n", signing_key=keys[0])
    return registry


@pytest.fixture
def signed(registered, tmp_path):
    """A copy of the first version, to be changed."""
    return shutil.copytree(registered.version("0001").directory, tmp_path / "0001")


def test_a_signed_version_holds_for_its_key_and_is_not_damaged(registered, keys):
    version = registered.version("0001")
    version.check_files()
    verify_version(version.directory, keys[1])
    verify_version(version.directory, Path(keys[1]).read_text())
    assert not {name for name in version.files if "model.sig" in name}
    assert not (version.directory / "model.sig").stat().st_mode & 0o222


def test_the_private_key_is_in_no_file_of_a_version(registered, keys):
    secret = "".join(Path(keys[0]).read_text().splitlines()[1:-1]).encode()
    for path in registered.version("0001").directory.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"PRIVATE KEY" not in content
            assert secret[20:60] not in content


def _forge(name, change):
    """Change what a signature says, and leave the signature of that as it was."""

    def forge(version):
        path = version / name
        bundle = json.loads(path.read_bytes())
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        change(statement["predicate"])
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        path.chmod(0o644)
        path.write_text(json.dumps(bundle))

    return forge


def _write(name, content):
    def write(version):
        (version / name).unlink(missing_ok=True)
        (version / name).write_bytes(content)

    return write


def _link(name):
    """Every byte stays, behind a link."""

    def link(version):
        (version / "export" / name).rename(version.parent / name)
        (version / "export" / name).symlink_to(version.parent / name)

    return link


def _cut(version):
    content = (version / "export" / "model.sig").read_bytes()
    _write("export/model.sig", content[: len(content) // 2])(version)


_CHANGES = {
    "a changed byte": (_write("export/model.tflite", b"onE export"), "changed: model.tflite"),
    "an added file": (_write("export/more.bin", b""), "added: more.bin"),
    "an added hidden file": (_write("export/.gitattributes", b""), "added: \\.gitattributes"),
    "a removed file": (lambda version: (version / "export" / "model.tflite").unlink(), "missing: model.tflite"),
    "a renamed file": (
        lambda version: (version / "export" / "model.tflite").rename(version / "export" / "other.tflite"),
        "added: other.tflite; missing: model.tflite",
    ),
    "a link": (_link("model.tflite"), "received a link: model.tflite"),
    "a signature that is a link": (_link("model.sig"), "received a link: model.sig"),
    "no signature": (lambda version: (version / "export" / "model.sig").unlink(), "received no model.sig"),
    "half a signature": (_cut, "a model.sig that is not a signature"),
    "an empty signature": (_write("export/model.sig", b""), "a model.sig that is not a signature"),
    "a garbled signature": (_write("export/model.sig", b"\xff\x00{"), "a model.sig that is not a signature"),
    "a signature that is another document": (_write("export/model.sig", b"[]"), "a model.sig that is not a signature"),
    "a signature that names other files": (
        _forge("export/model.sig", lambda predicate: predicate["resources"].pop()),
        "a model.sig that was changed",
    ),
    "a signature that passes files over": (
        _forge("export/model.sig", lambda predicate: predicate["serialization"].update(ignore_paths=["model.tflite"])),
        "a model.sig that was changed",
    ),
    "a signature that is a picture": (
        _write("export/model.sig", b"\x89PNG\r\n"),
        "a model.sig that is not a signature",
    ),
    "the signature of another folder": (
        lambda version: _write("export/model.sig", (version / "model.sig").read_bytes())(version),
        "missing: ",
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_what_was_changed_after_it_was_signed_is_refused(signed, keys, change):
    make, words = _CHANGES[change]
    verify_folder(signed / "export", keys[1])
    make(signed)
    with pytest.raises(InputError, match=f"(?s)^Rejected .*export: .*{words}"):
        verify_folder(signed / "export", keys[1])
    with pytest.raises(InputError, match=r"^Rejected "):
        verify_version(signed, keys[1])


@pytest.mark.parametrize("name", ["version.json", "README.md", "model/best.weights.h5", "export/model.sig"])
def test_a_versions_signature_is_over_all_of_it(signed, keys, name):
    _write(name, b"{}")(signed)
    with pytest.raises(InputError, match=f"changed: {name}"):
        verify_folder(signed, keys[1])


def test_the_export_of_another_signed_version_does_not_make_a_version(signed, registered, keys):
    shutil.rmtree(signed / "export")
    shutil.copytree(registered.version("0002").export_dir, signed / "export")
    verify_folder(signed / "export", keys[1])
    with pytest.raises(InputError, match=r"changed: export/model\.sig"):
        verify_version(signed, keys[1])


@pytest.mark.parametrize("removed", [(), ("model.sig",), ("version.json",), ("model.sig", "version.json"), "all"])
def test_another_signed_export_in_a_version_is_not_loaded(signed, registered, keys, tmp_path, removed):
    """Whoever may write the version makes its checksums right, too, and removes what does not fit."""
    shutil.rmtree(signed / "export")
    export = shutil.copytree(registered.version("0002").export_dir, signed / "export")
    described = registered.version("0001").as_dict()
    files = {name: describe_file(signed / name) for name in described["files"]}
    _write("version.json", json.dumps(described | {"files": files, "digest": digest_listing(files)}).encode())(signed)
    Version.load(signed).check_files()
    if removed == "all":
        (tmp_path / "digits" / "versions").mkdir(parents=True)
        export = signed.rename(tmp_path / "digits" / "versions" / "0001") / "export"
        shutil.rmtree(export.parent / "model")
        removed = ("model.sig", "version.json", "README.md")
    for name in removed:
        (export.parent / name).unlink()
    with pytest.raises(InputError, match=r"^Rejected .*0001: "):
        verify_export(str(export), keys[1])
    with pytest.raises(InputError, match=r"^Rejected .*0001: "):
        fetch_verified(str(export), keys[1], tmp_path / "scratch")


def test_a_version_in_the_place_of_another_one_is_refused(registered, keys, tmp_path):
    root = shutil.copytree(registered.root, tmp_path / "registry")
    first, second = (root / "digits" / "versions" / number for number in ("0001", "0002"))
    shutil.rmtree(first)
    first.symlink_to(second)
    shutil.copytree(root / "digits", root / "mnist", symlinks=True)
    for place, name in ((first, "digits@0001"), (root / "mnist" / "versions" / "0002", "mnist@0002")):
        expected = f"^Rejected {place}: expected the version {name}, but the files .* were signed as digits@0002, "
        with pytest.raises(InputError, match=expected):
            verify_export(f"{place}/export", keys[1])
        with pytest.raises(InputError, match=expected):
            fetch_verified(f"{place}/export", keys[1], tmp_path / name)
    with pytest.raises(InputError, match=r"0001: expected the version digits@0001, but the .* signed as digits@0002, "):
        verify_version(first, keys[1])


def test_a_version_from_before_there_were_names_is_verified(registered, keys, tmp_path):
    root = shutil.copytree(registered.root, tmp_path / "registry")
    version = root / "digits" / "versions" / "0001"
    described = json.loads((version / "version.json").read_text())
    assert described.pop("name") == "digits@0001"
    _write("version.json", json.dumps(described).encode())(version)
    sign_version(version, keys[0])
    assert verify_export(str(version / "export"), keys[1]) == str(version)


def test_another_key_is_refused(registered, tmp_path):
    _, other = write_keys(tmp_path)
    with pytest.raises(InputError, match=r"^Rejected .*0001: .*received a signature made with another key\."):
        verify_version(registered.version("0001").directory, other)


def test_a_signature_whose_signer_passes_files_over_is_refused(signed, keys):
    """The library's own command leaves files out where it is told to, and verifies what is left."""
    from model_signing import hashing, signing

    signature = signed / "export" / "model.sig"
    signature.unlink()
    config = signing.Config().use_elliptic_key_signer(private_key=keys[0])
    config.set_hashing_config(hashing.Config().set_ignored_paths(paths=["model.sig", "model.tflite"]))
    config.sign(signed / "export", signature)
    with pytest.raises(InputError, match=r"received unsigned files: model\.tflite"):
        verify_folder(signed / "export", keys[1])


def test_a_version_that_is_there_unsigned_stays_unsigned(keys, tmp_path):
    registry = ModelRegistry(tmp_path / "registry", "digits")
    folders = write_model(tmp_path / "made", "one")
    first = registry.register(*folders, **_FACTS)
    assert registry.register(*folders, **_FACTS, signing_key=keys[0]) == first
    with pytest.raises(InputError, match=r"0001: .*received no model\.sig"):
        verify_version(first.directory, keys[1])


def test_a_signature_that_an_export_brings_is_replaced(keys, tmp_path):
    model_dir, export_dir = write_model(tmp_path / "made", "one")
    (export_dir / "model.sig").write_text("of somebody else")
    registry = ModelRegistry(tmp_path / "registry", "digits")
    version = registry.register(model_dir, export_dir, **_FACTS, signing_key=keys[0])
    version.check_files()
    verify_version(version.directory, keys[1])


@pytest.mark.parametrize("curve", [ec.SECP384R1, ec.SECP521R1])
def test_keys_of_the_larger_curves_and_with_a_password_sign(tmp_path, monkeypatch, curve):
    private, public = write_keys(tmp_path, curve, b"of the key")
    with pytest.raises(InputError, match=r"TPU_PIPELINES_SIGNING_PASSWORD.*Password was not given"):
        try_keys(private, public)
    monkeypatch.setenv("TPU_PIPELINES_SIGNING_PASSWORD", "of the key")
    try_keys(private, public)
    monkeypatch.setenv("TPU_PIPELINES_SIGNING_PASSWORD", "of another")
    # The library finds a wrong password by its padding, and one in 256 fits; then it finds no key.
    with pytest.raises(InputError, match="and the password in TPU_PIPELINES_SIGNING_PASSWORD") as refused:
        try_keys(private, public)
    assert "of another" not in str(refused.value)


def test_what_is_no_key_is_named_before_anything_is_registered(keys, tmp_path):
    (tmp_path / "text").write_text("no key")
    (tmp_path / "large").write_bytes(bytes(100_000))
    _, other = write_keys(tmp_path / "other")
    _, of_bitcoin = write_keys(tmp_path / "curve", ec.SECP256K1)
    for private, public, words in (
        (tmp_path / "text", "", "Cannot sign with .*text.* expected a private key"),
        (keys[1], "", "Cannot sign with .* expected a private key"),
        (tmp_path / "none", "", "there is no such file"),
        (keys[0], tmp_path / "text", "Cannot verify with .*text: expected a public key"),
        (keys[0], keys[0], r"Cannot verify with .*signing\.pem: expected a public key"),
        (keys[0], Path(keys[0]).read_text(), "Cannot verify with the public key: expected a public key"),
        (tmp_path / "large", "", "Cannot use a key of 100,000 bytes"),
        (keys[0], of_bitcoin, "Unsupported key for curve 'secp256k1'"),
        (keys[0], other, "^signing_key and verify_key do not match: "),
    ):
        with pytest.raises(InputError, match=words) as refused:
            try_keys(str(private), str(public))
        assert "\n" not in str(refused.value)


def test_of_a_file_with_both_keys_only_the_public_one_is_handed_on(keys, tmp_path):
    private, public = (Path(key).read_text() for key in keys)
    (tmp_path / "both.pem").write_text(private + public)
    assert public_key_text(str(tmp_path / "both.pem")) == public
    assert public_key_text(private + public) == public
    try_keys(str(tmp_path / "both.pem"), str(tmp_path / "both.pem"))


def test_an_export_is_fetched_whole_before_it_is_verified(registered, keys, tmp_path):
    export = registered.version("0001").export_dir
    fetched = fetch_verified(str(export), keys[1], tmp_path)
    assert fetched.is_relative_to(tmp_path)
    assert (fetched / "model.tflite").read_text() == "one export"
    assert verify_export(str(export), keys[1]) == str(export.parent)


def test_what_cannot_be_copied_is_named(signed, keys, tmp_path):
    os.mkfifo(signed / "export" / "pipe")
    with pytest.raises(InputError, match=r"^Rejected .*0001: .*received a pipe, a socket or a device: export/pipe\."):
        fetch_verified(str(signed / "export"), keys[1], tmp_path / "scratch")


def test_on_a_bucket_a_version_and_the_export_alone_are_verified(registered, keys, bucket, tmp_path):
    version = registered.version("0001")
    storage.upload(version.directory, "gs://bucket/all/0001")
    storage.upload(version.export_dir, "gs://bucket/copy")
    storage.upload(Path(keys[1]), "gs://bucket/signing.pub")
    assert verify_export("gs://bucket/all/0001/export", keys[1]) == "gs://bucket/all/0001"
    assert fetch_verified("gs://bucket/all/0001/export", keys[1], tmp_path).parent.joinpath("version.json").is_file()
    expected = r"all/0001: expected the version digits, but the files in this folder were signed as digits@0001, "
    with pytest.raises(InputError, match=expected):
        verify_export("gs://bucket/all/0001/export", keys[1], "digits")
    with pytest.raises(InputError, match=r"^Cannot read 'gs://bucket/none'"):
        verify_export("gs://bucket/none/export", keys[1], "digits")
    assert verify_export("gs://bucket/copy", "gs://bucket/signing.pub") == "gs://bucket/copy"
    bucket.blob("copy/more").upload_from_string("")
    with pytest.raises(InputError, match=r"^Rejected gs://bucket/copy: .*added: more"):
        fetch_verified("gs://bucket/copy", keys[1], tmp_path)


@pytest.mark.heavy
def test_the_librarys_own_command_verifies_what_is_signed_here_and_the_other_way_round(signed, keys):
    """Starts four processes."""

    def model_signing(*words):
        done = subprocess.run([sys.executable, "-m", "model_signing", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    for folder in (signed / "export", signed):
        model_signing("verify", "key", folder, "--signature", folder / "model.sig", "--public_key", keys[1])
    for folder in (signed / "export", signed):
        (folder / "model.sig").unlink()
        model_signing("sign", "key", folder, "--signature", folder / "model.sig", "--private_key", keys[0])
    verify_version(signed, keys[1])
