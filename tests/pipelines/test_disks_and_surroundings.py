"""Disks that cannot be written, and odd surroundings: a paragraph and exit code 2, or it works."""

import contextlib
import io
import os
import resource
import subprocess
import sys

import pytest

from tests.support.registered import write_model
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.registry.folder import ModelRegistry
from tpu_pipelines.cli import registry as registry_command
from tpu_pipelines.cli.main import main


@pytest.fixture
def workspace(tiny_disk, tmp_path):
    """On a disk of its own: two versions, the second one the champion, and two runs."""
    registry = ModelRegistry(tiny_disk / "registry", "digits")
    for weights in "ab":
        version = registry.register(*write_model(tmp_path / weights, weights), metrics={}, reasons=[], lineage={})
        registry.promote(version.number, "champion", "better")
    for folder in ("digits", "digits.runs/0001"):
        (tiny_disk / folder).mkdir(parents=True)
        (tiny_disk / folder / "summary.json").write_text('{"status": "succeeded"}')
    return tiny_disk


def fill(disk):
    with contextlib.suppress(OSError), open(disk / "fill", "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))


def make_read_only(disk):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


@pytest.mark.parametrize(("spoil", "words"), [(fill, "the disk is full"), (make_read_only, "the disk is read-only")])
def test_on_a_disk_that_cannot_be_written_nothing_moves_and_it_is_said(workspace, capsys, monkeypatch, spoil, words):
    monkeypatch.setattr(registry_command, "load_model", lambda _: None)
    spoil(workspace)
    before = (workspace / "registry" / "digits" / "aliases.json").read_bytes()
    for command in (["registry", "rollback", "digits"], ["registry", "promote", "digits", "0001"]):
        assert main([*command, "--workspace", str(workspace)]) == 2
        assert words in capsys.readouterr().err
    assert (workspace / "registry" / "digits" / "aliases.json").read_bytes() == before
    for command in ("registry", "runs"):
        assert main([command, "list", "--workspace", str(workspace)]) == 0, "reading needs no disk"
        assert "digits" in capsys.readouterr().out


def test_on_a_read_only_disk_no_run_is_deleted(workspace, capsys):
    make_read_only(workspace)
    assert main(["runs", "clean", "--yes", "--workspace", str(workspace)]) == 2
    assert "the disk is read-only" in capsys.readouterr().err
    assert (workspace / "digits.runs" / "0001").is_dir()


def test_a_version_that_does_not_fit_is_none(workspace, tmp_path):
    folders = write_model(tmp_path / "large", "c")
    (folders[1] / "saved_model" / "variables").mkdir()
    for name in ("one", "two"):
        (folders[1] / "saved_model" / "variables" / name).write_bytes(bytes(200_000))
    registry = ModelRegistry(workspace / "registry", "digits")
    with pytest.raises(InputError, match=r"Could not write .*: the disk is full"):
        registry.register(*folders, metrics={}, reasons=[], lineage={})
    assert registry.numbers() == ("0001", "0002")


def test_a_limit_on_the_size_of_files_is_named(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, limits[1]))
    try:
        with pytest.raises(InputError, match=r"large\.bin: the file exceeds the size limit .*ulimit -f"):
            storage.write_bytes(tmp_path / "large.bin", bytes(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_full_is_named_and_output_that_is_closed_is_left_out(tmp_path):
    def run(redirected):
        command = f'"{sys.executable}" -m tpu_pipelines.cli machines {redirected}'
        return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    full, closed = run("> /dev/full"), run(">&-")
    assert (full.returncode, closed.returncode, closed.stderr) == (2, 0, "")
    assert full.stderr.startswith("error: Cannot write a file or the output: the disk is full.")
    assert len(full.stderr.splitlines()) == 1


def test_names_that_are_not_utf_8_are_shown_on_any_terminal(tmp_path, monkeypatch):
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for encoding in ("utf-8", "ascii")]
    for stream in streams:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        place = os.fsdecode(os.fsencode(tmp_path) + b"/n\xffm \xe2\x86\x92")
        assert main(["runs", "list", "--workspace", place]) == 2
        stream.flush()
    shown = [stream.buffer.getvalue() for stream in streams]
    assert rb"n\udcffm" in shown[0]
    assert rb"n\udcffm \u2192" in shown[1]


def test_a_workspace_that_is_not_utf_8_is_refused_before_any_work(tmp_path, capsys):
    place = os.fsdecode(os.fsencode(tmp_path) + b"/n\xffm")
    assert main(["run", "digits", "--workspace", place]) == 2
    assert r"/n\udcffm': expected a path in UTF-8" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_home_of_a_user_who_is_not_known_is_a_folder_that_is_not_there(capsys):
    assert main(["runs", "list", "--workspace", "~nobody-of-this-name/runs"]) == 2
    assert "There is no run in ~nobody-of-this-name/runs" in capsys.readouterr().err
