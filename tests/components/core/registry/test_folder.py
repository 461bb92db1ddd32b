import hashlib
import json
import re
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.registered import write_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import file_crc32c
from tpu_components.core.files import storage
from tpu_components.core.registry.folder import ModelRegistry, list_models
from tpu_components.core.registry.opening import parse_reference
from tpu_components.core.registry.reference import GATE, HAND, ROLLBACK
from tpu_components.core.registry.versions import VERSION_FILE, fetch_folder

_FACTS = {
    "metrics": {"accuracy": 0.9},
    "reasons": ["passed: there is no other champion to beat"],
    "lineage": {"run": "digits"},
}


@pytest.fixture
def registry(tmp_path):
    return ModelRegistry(tmp_path / "registry", "digits")


@pytest.fixture
def register(registry, tmp_path):
    def add(weights, export="export", **facts):
        folders = write_model(tmp_path / "made" / f"{weights}-{export}", weights, export)
        return registry.register(*folders, **{**_FACTS, **facts})

    return add


def replace(path, text):
    """Write a file anew; those of versions are read-only."""
    path.unlink(missing_ok=True)
    path.write_text(text)


def promote(registry, number, against):
    """Promote a version that was compared with another, by their numbers."""
    digest = registry.version(against).model_digest if against else against
    return registry.promote(number, "champion", "it is better", digest)


@pytest.fixture
def promote_new(registry, register):
    """Register models and promote each over the champion before it; returns the last move."""

    def promote_new(*all_weights):
        for weights in all_weights:
            move = promote(registry, register(weights).number, registry.aliases().get("champion", ""))
        return move

    return promote_new


def test_the_same_model_with_another_card_is_the_same_version_and_keeps_its_card(registry, register):
    version = register("one", card="# one\n")
    assert register("one", card="# another\n") == version
    assert (version.directory / "README.md").read_text() == "# one\n"
    version.check_files()
    (version.directory / "README.md").unlink()
    assert version.damage()[0].startswith("README.md should be ")


def test_a_version_without_a_card_is_whole(register):
    version = register("one")
    assert "README.md" not in version.files
    version.check_files()


def test_a_version_holds_model_export_and_where_it_comes_from(registry, register):
    version = register("one", parent="")
    assert version == registry.version("0001") == registry.versions()[0]
    assert (version.number, version.parent) == ("0001", "")
    assert (version.metrics, version.reasons, version.lineage) == tuple(_FACTS.values())
    assert (version.model_dir / "best.weights.h5").read_text() == "one"
    assert (version.export_dir / "saved_model" / "saved_model.pb").is_file()
    on_disk = {
        path.relative_to(version.directory).as_posix() for path in version.directory.rglob("*") if path.is_file()
    }
    assert on_disk == {*version.files, "version.json"}
    assert version.num_bytes == sum((version.directory / name).stat().st_size for name in version.files)
    assert registry.find("champion") is None, "registering moves no alias"
    assert [model.model_name for model in list_models(registry.root)] == ["digits"]


def test_the_same_content_is_the_same_version_however_long_it_took_to_make(registry, register, tmp_path):
    first = register("one")
    again = registry.register(*write_model(tmp_path / "elsewhere", "one"), **_FACTS)
    assert again == first
    assert [version.number for version in registry.versions()] == ["0001"]
    assert register("two").number == "0002"
    assert register("one", export="int4").number == "0003", "another export of the same model is another version"


def test_the_number_of_a_deleted_champion_is_not_used_again(registry, register, promote_new):
    promote_new("one")
    shutil.rmtree(registry.version("0001").directory)
    assert register("two").number == "0002"


def test_an_alias_moves_and_every_move_is_kept(registry, promote_new):
    promote_new("one", "two")
    registry.override("0001", "champion", "two is slow")
    registry.roll_back("champion", "it is not")
    moves = [(move.version, move.previous, move.by) for move in registry.moves()]
    assert moves == [("0001", "", GATE), ("0002", "0001", GATE), ("0001", "0002", HAND), ("0002", "0001", ROLLBACK)]
    assert registry.moves()[2].reason == "two is slow"
    assert registry.find("champion").number == "0002"
    assert registry.aliases() == {"champion": "0002"}


def test_promoting_the_champion_again_changes_nothing(registry, promote_new):
    move = promote_new("one")
    assert promote(registry, "0001", "") == move
    assert len(registry.moves()) == 1


def test_a_number_without_zeros_is_the_same_version(registry, promote_new):
    promote_new("one")
    with pytest.raises(InputError, match="Version 0001 of 'digits' already has the alias champion"):
        registry.override("1", "champion", "by hand")
    assert promote(registry, "1", "").by == GATE
    assert len(registry.moves()) == 1


def test_rolling_back_twice_goes_two_back_and_not_forth(registry, promote_new):
    promote_new("one", "two", "three")
    assert registry.roll_back("champion", "bad").version == "0002"
    assert registry.roll_back("champion", "bad too").version == "0001"
    with pytest.raises(InputError, match="no version had this alias before version 0001"):
        registry.roll_back("champion", "worse")


def test_a_run_does_not_undo_a_rollback_but_somebody_may(registry, promote_new):
    promote_new("one", "two")
    registry.roll_back("champion", "it calls every 7 a 1")
    with pytest.raises(InputError, match=r"version 0002 of 'digits': it was rolled back on .*it calls every 7 a 1"):
        promote(registry, "0002", "0001")
    assert registry.find("champion").number == "0001"
    assert [registry.alias_of(version) for version in ("1", "0002", "champion")] == ["champion", "", "champion"]
    registry.override("0002", "champion", "it was the camera")
    assert registry.find("champion").number == "0002"


def test_a_model_that_was_rolled_back_does_not_return_with_another_export(registry, register, promote_new):
    """As after an upgrade of LiteRT: the model is the same, its export has other bytes."""
    promote_new("one", "two")
    registry.roll_back("champion", "it calls every 7 a 1")
    again = register("two", export="another LiteRT")
    assert again.number == "0003"
    with pytest.raises(
        InputError, match=r"version 0003 of 'digits': version 0002, which has the same model, was rolled back .*every 7"
    ):
        promote(registry, "0003", "0001")
    assert registry.find("champion").number == "0001"
    promote_new("three")
    with pytest.raises(InputError, match="which has the same model, was rolled back"):
        promote(registry, "0003", "0004")
    registry.override("0003", "champion", "it was the camera")
    promote_new("four")
    third = register("two", export="a third LiteRT")
    assert promote(registry, third.number, "0005").version == "0006", "a promotion by hand cancels the rollback"


def test_a_move_by_hand_to_an_earlier_version_is_a_rollback(registry, register, promote_new):
    promote_new("one", "two")
    registry.override("0001", "champion", "two calls every 7 a 1")
    with pytest.raises(InputError, match=r"version 0002 of 'digits': it was rolled back on .*every 7"):
        promote(registry, "0002", "0001")
    with pytest.raises(InputError, match="version 0002, which has the same model, was rolled back"):
        promote(registry, register("two", export="another LiteRT").number, "0001")
    registry.override("0002", "champion", "it was the camera")
    promote_new("three")
    assert promote(registry, "0001", "0004").version == "0001", "a later version by hand is no rollback of the first"
    assert promote(registry, "0002", "0001").version == "0002"


def test_a_rollback_is_known_after_its_version_was_deleted(registry, register, promote_new):
    promote_new("one", "two")
    registry.roll_back("champion", "it calls every 7 a 1")
    shutil.rmtree(registry.version("0002").directory)
    with pytest.raises(InputError, match=r"version 0002, which has the same model, was rolled back"):
        promote(registry, register("two").number, "0001")


def test_a_rollback_from_one_export_to_another_of_the_same_model_concerns_only_that_export(
    registry, register, promote_new
):
    promote_new("one", "two")
    promote(registry, register("two", export="slow").number, "0001")
    registry.roll_back("champion", "it is slow")
    with pytest.raises(InputError, match=r"version 0003 of 'digits': it was rolled back on .*it is slow"):
        promote(registry, "0003", "0001")
    assert promote(registry, register("two", export="fast").number, "0001").version == "0004"


def test_moves_of_an_earlier_release_have_no_digest_of_a_model(registry, register, promote_new):
    promote_new("one", "two")
    registry.roll_back("champion", "bad")
    path = registry.directory / "aliases.json"
    moves = json.loads(path.read_text())
    for move in moves["champion"]:
        del move["model_digest"]
    path.write_text(json.dumps(moves))
    with pytest.raises(InputError, match="which has the same model, was rolled back"):
        promote(registry, register("two", export="another LiteRT").number, "0001")


def test_an_alias_that_moved_since_the_comparison_stays(registry, register, promote_new):
    promote_new("one")
    register("two")
    promote(registry, register("three").number, "0001")
    for against, words in (
        ("0001", "compared with 0001, but the champion is now 0003"),
        ("", "compared with no version, but"),
    ):
        with pytest.raises(InputError, match=words):
            promote(registry, "0002", against)
    assert registry.find("champion").number == "0003"
    assert promote(registry, "0002", None).previous == "0003", "compared with a model of the user's own choice"


def digest(registry, number):
    return registry.version(number).model_digest


def test_whoever_is_new_meets_the_champion(registry, promote_new):
    assert registry.champion("champion", "new") is None
    promote_new("one")
    assert registry.champion("champion", "new").number == "0001"
    promote_new("two")
    assert registry.champion("champion", "new").number == "0002"
    assert registry.champion("0001", "new").number == "0001"


def test_the_champion_meets_the_one_that_it_beat(registry, promote_new):
    promote_new("one")
    assert registry.champion("champion", digest(registry, "0001")) is None
    promote_new("two")
    assert registry.champion("champion", digest(registry, "0002")).number == "0001"
    promote(registry, "0001", "0002")
    assert registry.champion("champion", digest(registry, "0001")).number == "0002"


def test_a_model_is_not_its_own_champion_by_its_number_either(registry, promote_new):
    """A run names the champion by its number before it trains; trained again, the model may be that very one."""
    promote_new("one")
    assert registry.champion("0001", digest(registry, "0001")) is None
    promote_new("two")
    assert registry.champion("0002", digest(registry, "0002")).number == "0001"
    assert registry.champion("0001", digest(registry, "0001")).number == "0001", "no alias stands there"


def test_another_export_of_the_champion_meets_the_one_that_the_model_beat(registry, register, promote_new):
    promote_new("one", "two")
    for export in ("int4", "int2"):
        promote(registry, register("two", export=export).number, "0001")
    assert registry.find("champion").number == "0004"
    assert registry.champion("champion", digest(registry, "0002")).number == "0001"


def test_after_a_rollback_the_champion_meets_the_one_that_it_once_beat(registry, promote_new):
    promote_new("one", "two")
    registry.roll_back("champion", "bad")
    assert registry.champion("champion", digest(registry, "0001")) is None
    assert registry.champion("champion", digest(registry, "0002")).number == "0001"


def test_a_champion_that_was_deleted_is_none(registry, promote_new):
    promote_new("one", "two")
    shutil.rmtree(registry.version("0001").directory)
    assert registry.champion("champion", digest(registry, "0002")) is None


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"champion": "0001"}', '{"champion": [{"version": "0001"}]}', "\x00", '{"champion": 1}']
)
def test_damaged_aliases_are_named_and_never_taken_for_none(registry, promote_new, content):
    promote_new("one")
    (registry.directory / "aliases.json").write_text(content)
    for act in (
        registry.aliases,
        lambda: registry.find("champion"),
        lambda: promote(registry, "0001", ""),
        lambda: registry.roll_back("champion", ""),
    ):
        with pytest.raises(InputError, match=r"aliases\.json: .*registry promote digits VERSION"):
            act()
    assert (registry.directory / "aliases.json").read_text() == content


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"digest": 1}'])
def test_a_damaged_version_is_named(registry, register, content):
    path = register("one").directory / "version.json"
    path.unlink() if content is None else replace(path, content)
    with pytest.raises(InputError, match=r"0001/version\.json: expected the description of a registered version"):
        registry.version("0001")


def test_no_alias_moves_to_a_version_with_damaged_files(registry, register, promote_new):
    promote_new("one")
    weights = register("two").model_dir / "best.weights.h5"
    replace(weights, "owt")
    for act in (lambda: promote(registry, "0002", "0001"), lambda: registry.override("0002", "champion", "")):
        with pytest.raises(InputError, match=r"Version 0002 .* is damaged: model/best\.weights\.h5 .*'num_bytes': 3"):
            act()
    assert registry.find("champion").number == "0001"
    weights.unlink()
    with pytest.raises(InputError, match="no such file"):
        promote(registry, "0002", "0001")


@pytest.mark.parametrize(
    "name",
    [
        "model/best.weights.h5",
        "model/model.json",
        "export/saved_model/saved_model.pb",
        "export/export.json",
        "export/model_int8.tflite",
        "export/saved_model/assets/new",
    ],
)
def test_every_file_of_a_version_is_checked(register, tmp_path, name):
    version = register("one")
    version.check_files()
    (version.export_dir / "saved_model" / "assets").mkdir()
    (version.export_dir / ".DS_Store").write_text("left by the system")
    version.check_files()
    replace(version.directory / name, "damaged")
    with pytest.raises(InputError, match=f"Version 0001 in .* is damaged: {name}"):
        version.check_files()
    for folder in (version.model_dir, version.export_dir):
        with pytest.raises(InputError, match=f"Version 0001 in .* is damaged: {name}"):
            fetch_folder(str(folder), tmp_path)
    fetch_folder(str(version.directory), tmp_path)


@pytest.mark.parametrize("folder", ["app/export", "versions/app/export", "versions/0001/other"])
def test_a_version_file_of_something_else_is_none_of_ours(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder).with_name("version.json").write_text('{"version": "1.4.2"}')
    fetch_folder(str(tmp_path / folder), tmp_path)


def test_a_versions_digest_covers_all_of_its_files(register, registry):
    version = register("one")
    replace(version.export_dir / "export.json", "{}")
    described = json.loads((version.directory / "version.json").read_text())
    described["files"]["export/export.json"] = {"num_bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    replace(version.directory / "version.json", json.dumps(described))
    (damage,) = registry.version("0001").damage()
    assert damage.startswith(f"version.json lists files whose digest is not {version.digest[:16]}")


def test_writing_to_a_run_changes_no_version(registry, register, tmp_path):
    version = register("one")
    made = tmp_path / "made" / "one-export"
    for folder in ("model", "export"):
        for path in (path for path in (made / folder).rglob("*") if path.is_file()):
            with open(path, "a") as file:
                file.write("more")
    version.check_files()
    files = [path for path in version.directory.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o444}


def as_before(version):
    """Describe a version as it was done when files had CRC32C and the digest was of the model and its LiteRT files."""
    described = version.as_dict()
    described["digest"] = described.pop("content_digest")
    for name, file in described["files"].items():
        del file["sha256"]
        file["crc32c"] = file_crc32c(version.directory / name)
    replace(version.directory / "version.json", json.dumps(described))


def test_versions_from_before_are_read_and_found_again(registry, register):
    as_before(register("one"))
    version = registry.version("0001")
    version.check_files()
    promote(registry, "0001", "")
    assert register("one").number == "0001"
    replace(version.model_dir / "best.weights.h5", "owt")
    with pytest.raises(InputError, match=r"model/best\.weights\.h5 should be .*crc32c"):
        version.check_files()


def test_a_part_of_a_version_on_a_bucket_is_checked(register, bucket, tmp_path):
    version = register("one")
    storage.upload(version.directory, "gs://bucket/digits/0001")
    folder = fetch_folder("gs://bucket/digits/0001/model", tmp_path / "scratch")
    assert (folder / "best.weights.h5").read_text() == "one"
    bucket.blob("digits/0001/model/best.weights.h5").upload_from_string("owt")
    with pytest.raises(InputError, match=r"0001 in gs://bucket/digits is damaged: model/best\.weights\.h5"):
        fetch_folder("gs://bucket/digits/0001/model", tmp_path / "scratch")
    fetch_folder("gs://bucket/digits/0001/export", tmp_path / "scratch")


def test_an_alias_on_a_version_that_is_gone_says_so(registry, register, promote_new):
    promote_new("one")
    shutil.rmtree(registry.version("0001").directory)
    with pytest.raises(InputError, match=r"'digits' has no version '0001' .* because nothing is registered"):
        registry.find("champion")
    registry.override(register("two").number, "champion", "the first one is lost")
    assert registry.find("champion").number == "0002"


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b", "a b", "x" * 65, "a@b"])
def test_names_that_are_no_folders_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="Cannot use the model name"):
        ModelRegistry(tmp_path, name)


@pytest.mark.parametrize("root", ["", "gs://bucket/registry"])
def test_a_registry_that_is_not_here_is_refused(root):
    with pytest.raises(InputError, match="registry must be a folder on this machine"):
        ModelRegistry(root, "digits")


def test_asking_for_an_unknown_model_creates_nothing(registry):
    for act in (lambda: promote(registry, "0001", ""), lambda: registry.roll_back("champion", "")):
        with pytest.raises(InputError, match="There is no model 'digits'"):
            act()
    assert not registry.root.exists()


def test_references_and_folders_are_told_apart(tmp_path):
    (tmp_path / "odd@name").mkdir()
    for folder in (f"{tmp_path}/odd@name", f"{tmp_path}/model", "gs://bucket/model@champion", "", "a/b@C", "@champion"):
        assert parse_reference(folder) is None, folder
    registry, version = parse_reference(f"{tmp_path}/digits@0001")
    assert (registry.directory, version) == (tmp_path / "digits", "0001")


_WRITER = """
import os, signal, sys
from pathlib import Path
from tpu_components.core.registry.folder import ModelRegistry

root, made, champion = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

def die_at(left):
    def counted(call):
        def wrapper(*args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)
        return wrapper
    for name in ("fchmod", "rename", "replace", "fsync", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))

def write():
    registry = ModelRegistry(root, "digits")
    version = registry.register(made / "model", made / "export", metrics={}, reasons=[], lineage={}, parent="0001")
    registry.promote(version.number, "champion", "it is better", champion)
    return version.number

if sys.argv[4:]:
    for line in sys.stdin:  # Each in a copy of this process, which has imported all.
        if (child := os.fork()) == 0:
            die_at(int(line))
            write()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    print(write())
"""


def writer(registry, made, *mortal):
    words = [sys.executable, "-c", _WRITER, registry.root, made, digest(registry, "0001"), *mortal]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe if mortal else None, stdout=pipe, stderr=pipe, text=True)


def test_killed_at_any_moment_it_leaves_the_old_state_or_the_new_and_can_go_on(registry, promote_new, tmp_path):
    """At each of a dozen system calls that change something, from the first copy to the last rename."""
    promote_new("one")
    write_model(tmp_path / "two", "two")
    before = tmp_path / "before"
    shutil.copytree(registry.root, before)
    states = []
    process = writer(registry, tmp_path / "two", "mortal")
    while True:
        shutil.rmtree(registry.root)
        shutil.copytree(before, registry.root)
        print(len(states) + 1, file=process.stdin, flush=True)
        exit_code = int(process.stdout.readline())
        if exit_code == 0:
            break
        assert exit_code == -signal.SIGKILL
        numbers = [version.number for version in registry.versions()]
        states.append((numbers, registry.aliases()["champion"]))
        for number in numbers:
            registry.version(number).check_files()
        made = registry.register(tmp_path / "two" / "model", tmp_path / "two" / "export", **_FACTS)
        promote(registry, made.number, "0001")
        assert [version.number for version in registry.versions()] == ["0001", "0002"]
        assert [move.version for move in registry.moves()] == ["0001", "0002"]
        assert {path.name for path in registry.directory.iterdir()} == {"versions", "aliases.json", ".lock"}
        assert {path.name for path in (registry.directory / "versions").iterdir()} == {"0001", "0002"}
    assert process.communicate() == ("", "")
    assert len(states) > 10
    assert {json.dumps(state) for state in states} == {
        json.dumps(state) for state in [(["0001"], "0001"), (["0001", "0002"], "0001")]
    }, "the alias moves in the very last call"


def test_four_at_once_make_one_version_and_one_move(registry, promote_new, tmp_path):
    promote_new("one")
    write_model(tmp_path / "two", "two")
    processes = [writer(registry, tmp_path / "two") for _ in range(4)]
    assert [process.communicate() for process in processes] == [("0002\n", "")] * 4
    assert [version.number for version in registry.versions()] == ["0001", "0002"]
    assert [move.version for move in registry.moves()] == ["0001", "0002"]


def test_of_two_different_ones_at_once_only_one_becomes_champion(registry, promote_new, tmp_path):
    promote_new("one")
    for name in ("two", "three"):
        write_model(tmp_path / name, name)
    processes = [writer(registry, tmp_path / name) for name in ("two", "three")]
    outcomes = sorted(process.communicate() and process.returncode for process in processes)
    assert outcomes == [0, 1], "the other was compared with a champion that is none any more"
    assert len(registry.versions()) == 3
    assert len(registry.moves()) == 2


def test_paths_need_not_exist_before(tmp_path):
    assert ModelRegistry(Path(tmp_path) / "a" / "b", "digits").versions() == ()


def _take_away(path):
    shutil.rmtree(path)
    path.mkdir()


UNREADABLE = {
    "without its files": _take_away,
    "without its description": lambda path: (path / VERSION_FILE).unlink(),
    "with another description": lambda path: replace(path / VERSION_FILE, "[]"),
    "with text in its place": lambda path: replace(path / VERSION_FILE, "\x00not JSON"),
    "a file": lambda path: (shutil.rmtree(path), path.write_text("")),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_an_unreadable_version_is_passed_over_with_a_warning_and_keeps_its_number(
    how, registry, register, promote_new, capfd
):
    promote_new("a", "b")
    UNREADABLE[how](registry.directory / "versions" / "0001")
    ModelRegistry(registry.root, registry.model_name)
    assert register("b").number == "0002"
    assert registry.champion("champion", "other").number == "0002"
    assert register("c").number == "0003"
    assert promote_new("d").version == "0004"
    assert register("a").number == "0005"
    assert registry.numbers() == ("0001", "0002", "0003", "0004", "0005")
    warning = rf"Warning: version 0001 of 'digits' is skipped\. Cannot read .*0001/{VERSION_FILE}: "
    assert len(re.findall(warning, capfd.readouterr().err)) == 1


def test_an_empty_folder_with_the_highest_number_is_no_version_and_its_number_is_not_used(registry, register):
    register("a")
    (registry.directory / "versions" / "0007").mkdir()
    assert [version.number for version in registry.versions()] == ["0001"]
    assert register("b").number == "0008"


def test_a_rollback_of_a_version_that_is_unreadable_now_still_counts(registry, register, promote_new):
    promote_new("a", "b")
    registry.roll_back("champion", "worse")
    _take_away(registry.directory / "versions" / "0002")
    again = register("b")
    assert again.number == "0003"
    with pytest.raises(InputError, match="was rolled back"):
        registry.promote(again.number, "champion", "better")


def test_the_version_to_beat_must_be_readable(registry, register, promote_new):
    promote_new("a", "b")
    digest = registry.version("0002").model_digest
    _take_away(registry.directory / "versions" / "0001")
    with pytest.raises(InputError, match=r"0001/version\.json: expected the description of a registered version"):
        registry.champion("champion", digest)


def test_a_folder_that_is_no_model_does_not_hide_the_models(registry, register):
    register("a")
    (registry.root / "my backup (1)" / "versions").mkdir(parents=True)
    assert [model.model_name for model in list_models(registry.root)] == ["digits"]
