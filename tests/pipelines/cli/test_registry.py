import json
import os
import shutil

import pytest

from tests.support.signing_keys import write_keys
from tpu_components.core.registry.folder import ModelRegistry
from tpu_components.core.registry.signing import sign_version
from tpu_pipelines import cli


@pytest.fixture
def workspace(finished_run, tmp_path):
    """A copy of the finished run's registry, and in it a second version, the champion, with the same export."""
    shutil.copytree(finished_run[0] / "registry", tmp_path / "registry")
    registry = ModelRegistry(tmp_path / "registry", "digits")
    first = registry.version("0001")
    shutil.copytree(first.model_dir, tmp_path / "model")
    (tmp_path / "model" / "best.weights.h5").write_bytes(b"other")
    version = registry.register(
        tmp_path / "model", first.export_dir, metrics={"accuracy": 0.99}, reasons=[], lineage={}, parent="0001"
    )
    registry.promote(version.number, "champion", "it beats 0001", first.model_digest)
    return tmp_path


@pytest.fixture
def call(workspace, capsys):
    def call(*words):
        code = cli.main(["registry", *words, "--workspace", str(workspace)])
        said = capsys.readouterr()
        return code, said.out or said.err

    return call


def test_list_shows_every_version_and_where_the_alias_stands(call):
    code, out = call("list")
    assert code == 0
    header, first, second = out.splitlines()
    assert header.split() == ["model", "version", "alias", "created", "score", "loss", "parent", "MiB"]
    assert first.split()[:2] == ["digits", "0001"]
    assert second.split()[:3] == ["digits", "0002", "champion"]
    assert second.split()[4:8] == ["accuracy", "0.9900", "-", "0001"]
    rows = json.loads(call("list", "digits", "--json")[1])
    assert [(row["version"], row["aliases"]) for row in rows] == [("0001", []), ("0002", ["champion"])]


def test_list_names_every_damaged_version_with_its_files(call, workspace):
    registry = ModelRegistry(workspace / "registry", "digits")
    (registry.version("0001").export_dir / "saved_model" / "saved_model.pb").unlink()
    described = registry.version("0002").directory / "version.json"
    described.chmod(0o644)
    described.write_text("{}")
    code, out = call("list")
    assert code == 0
    *_, first, second = out.splitlines()
    assert first.startswith("damaged: digits 0001: export/saved_model/saved_model.pb should be ")
    assert first.endswith("is no such file or directory")
    assert second.startswith("damaged: digits 0002: Cannot read ")
    rows = json.loads(call("list", "digits", "--json")[1])
    assert [len(row["damage"]) for row in rows] == [1, 1]


def test_show_tells_all_of_the_champion_or_of_a_version(call, finished_run):
    code, out = call("show", "digits")
    assert code == 0
    assert "version: '0002'" in out
    assert out.splitlines()[-1].endswith("gate     0001 → 0002  it beats 0001")
    shown = json.loads(call("show", "digits", "0001", "--json")[1])
    assert shown["card"] == f"{shown['directory']}/README.md"
    assert json.loads(call("show", "digits", "0002", "--json")[1])["card"] == "", "it was registered without one"
    assert shown["lineage"]["config"] == finished_run[1]["config"]
    assert [move["version"] for move in shown["history"]] == ["0001", "0002"]


def test_rollback_and_promote_move_the_champion_and_keep_the_reason(call, workspace):
    assert call("rollback", "digits", "--reason", "slow") == (0, "digits version 0001 is the champion, after 0002\n")
    assert call("promote", "digits", "0002", "--reason", "it is not") == (
        0,
        "digits version 0002 is the champion, after 0001\n",
    )
    moves = ModelRegistry(workspace / "registry", "digits").moves()
    assert [(move.by, move.reason) for move in moves[2:]] == [("rollback", "slow"), ("hand", "it is not")]


def test_a_user_without_a_name_promotes_by_number(call, workspace, monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert call("promote", "digits", "0001")[0] == 0
    assert ModelRegistry(workspace / "registry", "digits").moves()[-1].reason == f"by user {os.getuid()}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("promote", "digits"),
            "registry promote: expected registry promote NAME VERSION. Received: registry promote digits",
        ),
        (("list", "digits", "0001"), "expected registry list [NAME]"),
        (("show",), "expected registry show NAME [VERSION]"),
        (("show", "digits", "--verify", "signing.pub"), "--verify is not supported with registry show"),
        (("promote", "digits", "0001", "--verify", ""), "--verify must be a public key. Received: an empty value"),
        (("rollback", "digits", "--verify", " "), "--verify must be a public key. Received: an empty value"),
        (("rollback", "digits", "0001"), "expected registry rollback NAME"),
        (("show", "digit"), "Did you mean 'digits'?"),
        (("promote", "digits", "0003"), "expected one of 0001, 0002"),
        (("promote", "digits", "0002"), "already has the alias champion"),
        (("promote", "digits", "2"), "Version 0002 of 'digits' already has the alias champion"),
        (("list", "--registry", "/nowhere"), "No models are registered in /nowhere"),
    ],
)
def test_mistakes_give_exit_code_2_and_say_what_is_right(call, words, message):
    code, error = call(*words)
    assert code == 2
    assert error.startswith("error: ")
    assert message in error


def test_with_a_key_the_champion_moves_only_to_a_version_that_is_signed(call, workspace):
    private, public = write_keys(workspace / "keys")
    registry = ModelRegistry(workspace / "registry", "digits")
    for words in (("rollback", "digits"), ("promote", "digits", "0001")):
        code, error = call(*words, "--verify", public)
        assert (code, len(error.splitlines())) == (2, 1)
        assert "0001: expected a signature that" in error
    assert registry.aliases() == {"champion": "0002"}
    sign_version(registry.version("0001").directory, private)
    assert call("rollback", "digits", "--verify", public)[0] == 0
    assert registry.aliases() == {"champion": "0001"}


def test_verify_says_whether_a_version_or_an_export_is_as_it_was_signed(workspace, capsys):
    private, public = write_keys(workspace / "keys")
    version = ModelRegistry(workspace / "registry", "digits").version("0001")

    def verify(model):
        code = cli.main(["verify", str(model), "--key", public, "--workspace", str(workspace)])
        return code, "".join(capsys.readouterr())

    code, said = verify("digits@0001")
    assert (code, len(said.splitlines())) == (2, 1)
    sign_version(version.directory, private)
    for model in ("digits@0001", version.directory, version.export_dir):
        assert verify(model) == (0, f"{version.directory} is signed with {public}, and no file has changed since\n")
    alone = shutil.copytree(version.export_dir, workspace / "alone" / "export")
    assert verify(alone) == (0, f"{alone} is signed with {public}, and no file has changed since\n")
    (version.directory / "version.json").unlink()
    code, said = verify(version.directory)
    assert (code, len(said.splitlines())) == (2, 1)
    assert f"Rejected {version.directory}: " in said
    assert "missing: version.json" in said


def test_a_version_that_does_not_answer_is_not_promoted(call, workspace):
    registry = ModelRegistry(workspace / "registry", "digits")
    tflite = registry.version("0001").export_dir / "model.tflite"
    tflite.unlink()
    tflite.write_bytes(b"")
    code, error = call("promote", "digits", "0001")
    assert code == 2
    assert "model.tflite should be" in error
    code, error = call("rollback", "digits")
    assert code == 2
    assert "model.tflite should be" in error
    assert registry.aliases() == {"champion": "0002"}


def test_an_old_version_that_is_unreadable_stops_no_command(call, workspace):
    registry = ModelRegistry(workspace / "registry", "digits")
    (workspace / "model" / "best.weights.h5").write_bytes(b"third")
    registry.register(workspace / "model", registry.version("0001").export_dir, metrics={}, reasons=[], lineage={})
    shutil.rmtree(registry.directory / "versions" / "0001")
    (registry.directory / "versions" / "0001").mkdir()
    code, out = call("promote", "digits", "3")
    assert (code, out) == (0, "digits version 0003 is the champion, after 0002\n")
    assert call("rollback", "digits")[0] == 0
    assert call("show", "digits")[0] == 0
    code, out = call("list")
    assert code == 0
    assert out.splitlines()[-1].startswith("damaged: digits 0001: Cannot read ")
