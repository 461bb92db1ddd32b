import contextlib
import dataclasses
import errno
import json
import os
import stat

import pytest

from tpu_components.preflight_training import data
from tpu_components.preflight_training.compiling import compile_cache, sandbox
from tpu_components.preflight_training.compiling.outcome import FITS, Outcome

CONTENT = dataclasses.asdict(Outcome(FITS, parameters=3))


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "preflight" / "request-1.json"
    compile_cache.keep(path, CONTENT)
    return path


def test_what_is_kept_is_recalled_from_a_private_folder(kept):
    assert compile_cache.recall(kept, Outcome) == Outcome(FITS, parameters=3)
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    kept.parent.chmod(0o777)  # As versions before made it, or somebody since.
    compile_cache.keep(kept, CONTENT)
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "\0", "{}", json.dumps(CONTENT), "[" * 100_000])
def test_a_damaged_file_is_none(kept, text):
    kept.write_text(text)
    assert compile_cache.recall(kept, Outcome) is None


def test_a_file_that_was_changed_or_is_another_key_s_is_none(kept):
    text = kept.read_text()
    kept.write_text(text.replace('"parameters": 3', '"parameters": 4'))
    assert compile_cache.recall(kept, Outcome) is None
    other = kept.with_name("request-2.json")
    other.write_text(text)
    assert compile_cache.recall(other, Outcome) is None


def test_content_of_another_form_is_none(kept):
    compile_cache.keep(kept, {"verdict": FITS})
    assert compile_cache.recall(kept, Outcome) is None


def test_what_others_may_have_written_is_none(kept):
    kept.chmod(0o666)
    assert compile_cache.recall(kept, Outcome) is None
    kept.chmod(0o600)
    link = kept.with_name("link")
    kept.rename(link)
    kept.symlink_to(link)
    assert compile_cache.recall(kept, Outcome) is None
    kept.unlink()
    os.mkfifo(kept)
    assert compile_cache.recall(kept, Outcome) is None, "and it does not wait for a pipe's other end"


def test_another_users_folder_is_neither_read_nor_written(kept, tmp_path, monkeypatch):
    monkeypatch.setenv(sandbox.CACHE_VARIABLE, str(tmp_path))
    assert sandbox.default_cache_dir() == kept.parent
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    assert sandbox.default_cache_dir() == tmp_path / f"preflight-{us + 1}"
    assert compile_cache.recall(kept, Outcome) is None
    before = kept.read_bytes()
    compile_cache.keep(kept, {**CONTENT, "parameters": 4})
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("number", "fails"), [(errno.EROFS, False), (errno.EACCES, False), (errno.ENOTDIR, False), (errno.EIO, True)]
)
def test_where_nothing_may_be_written_nothing_is_kept(tmp_path, monkeypatch, number, fails):
    """As in a container whose file system is read-only, or whose user has no home."""

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(OSError, match="Input/output error") if fails else contextlib.nullcontext():
        compile_cache.keep(tmp_path / "home" / "preflight" / "request-1.json", CONTENT)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_measurement_is_measured_again(tmp_path):
    rate = data.HostRate(1.0, 2.0, True, 2)
    found = []
    measurement = data.Measurement(4096, 1000, tmp_path)
    for _ in range(2):
        assert measurement.recall(["key"], lambda: found.append(1) or rate) == rate
    assert found == [1]
    (kept,) = tmp_path.glob("host-*.json")
    kept.write_text("{")
    assert measurement.recall(["key"], lambda: found.append(2) or rate) == rate
    assert found == [1, 2]
