import json
import os
import shutil

import pytest

from tpu_pipelines.runs.step_cache import StepCache, entry_key

TASK = "training-pipeline-2026-01-01/train-model"


@pytest.fixture
def workspace(tmp_path):
    """A cache with one step that is done; versions before wrote its entry relative to the cache."""
    cache = tmp_path / "runs" / ".cache" / "digits"
    fill(cache / TASK / "trained")
    write_entry(cache, f"{TASK}/trained")
    return tmp_path / "runs"


def fill(folder):
    folder.mkdir(parents=True)
    (folder / "model.json").write_text("{}")
    return folder


def write_entry(cache, uri, key="key"):
    (cache / "steps").mkdir(exist_ok=True)
    entry = {"trained": {"__kfp_artifact__": True, "uri": str(uri), "metadata": {"epochs": 3}}, "Output": 1}
    (cache / "steps" / f"{key}.json").write_text(json.dumps(entry))


def open_cache(workspace):
    return StepCache(workspace / ".cache" / "digits")


def test_an_entrys_key_is_the_one_that_kfp_computes(tmp_path):
    from kfp.local.cache import LocalCache

    theirs = LocalCache(str(tmp_path)).compute_key("comp-train-model", "", [], {}, custom_cache_key="0123")
    assert entry_key("train_model", "0123") == theirs


@pytest.mark.parametrize("name", ["{0}", "{0}/", "{0}/../other/x", "../../../other", "training-pipeline-x/../../other"])
def test_a_folder_elsewhere_is_neither_read_nor_deleted(workspace, tmp_path, name):
    other = fill(tmp_path / "other")
    fill(other / "x")
    write_entry(workspace / ".cache" / "digits", name.format(other))
    cache = open_cache(workspace)
    assert cache.output("key", "trained") is None
    cache.remove(other)
    cache.drop_leftovers()
    assert (other / "model.json").is_file()
    assert list(cache.entries_dir.iterdir()) == []


@pytest.mark.parametrize("link", ["training-pipeline-2026-01-01", TASK, f"{TASK}/trained"])
def test_a_link_out_of_the_cache_is_not_followed(workspace, tmp_path, link):
    other = tmp_path / "other"
    place = workspace / ".cache" / "digits" / link
    shutil.move(place, other)
    place.symlink_to(other)
    before = sorted(other.rglob("*"))
    cache = open_cache(workspace)
    assert cache.output("key", "trained") is None
    cache.drop_leftovers()
    assert sorted(other.rglob("*")) == before


def test_entries_that_are_linked_from_elsewhere_are_neither_changed_nor_deleted(workspace, tmp_path):
    cache = workspace / ".cache" / "digits"
    write_entry(cache, "/nowhere/x")
    shutil.move(cache / "steps", tmp_path / "steps")
    (cache / "steps").symlink_to(tmp_path / "steps")
    before = (tmp_path / "steps" / "key.json").read_bytes()
    open_cache(workspace).drop_leftovers()
    assert (tmp_path / "steps" / "key.json").read_bytes() == before


def test_an_entry_that_a_killed_run_left_half_written_is_deleted(workspace):
    cache = open_cache(workspace)
    (cache.entries_dir / ".key.json.abc.tmp").write_text("{")
    cache.drop_leftovers()
    assert [path.name for path in cache.entries_dir.iterdir()] == ["key.json"]


@pytest.mark.parametrize("absolute", [True, False])
def test_a_copied_workspace_reads_its_own(workspace, tmp_path, absolute):
    if absolute:
        write_entry(workspace / ".cache" / "digits", workspace / ".cache" / "digits" / TASK / "trained")
    copy = shutil.copytree(workspace, tmp_path / "copy")
    for place in (workspace, copy):
        cache = open_cache(place)
        cache.drop_leftovers()
        assert cache.output("key", "trained") == place / ".cache" / "digits" / TASK / "trained"
    cache.remove(cache.output("key", "trained"))
    assert cache.output("key", "trained") is None
    assert open_cache(workspace).output("key", "trained") is not None


def test_kfp_sees_absolute_paths_and_all_else_as_it_was(workspace):
    cache = open_cache(workspace)
    seen = json.loads((cache.for_kfp() / "key.json").read_text())
    uri = str(cache.directory / TASK / "trained")
    assert seen == {"trained": {"__kfp_artifact__": True, "uri": uri, "metadata": {"epochs": 3}}, "Output": 1}


def test_what_interrupted_runs_left_is_deleted(workspace):
    cache = open_cache(workspace)
    fill(cache.directory / "training-pipeline-2026-01-01" / "export-model" / "export")
    fill(cache.directory / "training-pipeline-2026-01-02" / "train-model" / "trained")
    (cache.entries_dir / "damaged.json").write_text("[")
    cache.drop_leftovers()
    assert os.listdir(cache.entries_dir) == ["key.json"]
    assert [str(path.relative_to(cache.directory)) for path in cache.directory.glob("training-*/*")] == [TASK]


def test_an_entry_that_an_earlier_version_wrote_is_kept_by_the_name_of_its_output(workspace, tmp_path):
    """The output of export_model was called `exported`. Its code is part of its key, so that it is exported again."""
    cache = open_cache(workspace)
    export = fill(cache.directory / "training-pipeline-2026-01-01" / "export-model" / "exported")
    entry = {"exported": {"__kfp_artifact__": True, "uri": str(export), "metadata": {}}}
    (cache.entries_dir / "older.json").write_text(json.dumps(entry))
    run = tmp_path / "run" / "export"
    run.mkdir(parents=True)
    os.link(export / "model.json", run / "model.json")
    cache.drop_leftovers()
    cache.keep_only([run])
    assert os.listdir(cache.entries_dir) == ["older.json"]
    assert json.loads((cache.for_kfp() / "older.json").read_text()) == entry
    assert cache.output("older", "exported") == export


def test_a_step_of_another_run_is_shared_and_not_copied(workspace, tmp_path):
    theirs, other = open_cache(workspace), StepCache(workspace / ".cache" / "other")
    assert other.adopt("none", "trained", theirs.directory) is None
    shared = other.adopt("key", "trained", theirs.directory)
    assert shared is not None
    assert shared.is_relative_to(other.directory)
    given = theirs.output("key", "trained")
    assert os.path.samefile(shared / "model.json", given / "model.json")
    other.drop_leftovers()
    theirs.remove(given)
    assert (other.output("key", "trained") / "model.json").read_text() == "{}"


def test_a_step_that_another_cache_only_links_is_not_shared(workspace, tmp_path):
    photos = fill(tmp_path / "photos")
    write_entry(workspace / ".cache" / "digits", photos)
    other = StepCache(workspace / ".cache" / "other")
    assert other.adopt("key", "trained", workspace / ".cache" / "digits") is None


def test_what_no_run_keeps_is_not_found_and_goes_with_the_leftovers(workspace):
    cache = open_cache(workspace)
    assert cache.output("key", "trained") is not None
    cache.keep_only(())
    assert cache.output("key", "trained") is None
    assert not (cache.directory / TASK).exists()


@pytest.mark.parametrize("content", ["[" * 100_000, '{"trained": {"uri": "\\ud800"}}', "5"])
def test_an_entry_that_is_no_plain_json_is_none(tmp_path, content):
    cache = StepCache(tmp_path)
    (cache.entries_dir / "key.json").write_text(content)
    assert cache.output("key", "trained") is None
    cache.drop_leftovers()
    assert not list(cache.entries_dir.iterdir())
