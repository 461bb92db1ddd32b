"""Claims about every reader of outside bytes: it reads what is good, and refuses everything that was ever found."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.evidence.fuzz import sandbox as sandboxes
from tests.evidence.fuzz.__main__ import corpus, reader_of
from tests.evidence.fuzz.bombs import BOMBS
from tests.evidence.fuzz.readers import READERS
from tests.evidence.fuzz.sandbox import Sandbox
from tests.support.cli import REPOSITORY
from tests.support.sharing import made_once
from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.kinds import SOURCES

_BOMB_MIB = 600  # Twice the 256 MiB that a file may unpack to, and a little.


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What became of every file: by reader and name. Each is read in a process of its own."""

    def read(folder):
        command = [sys.executable, "-m", "tests.evidence.fuzz", "--corpus"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
        assert done.returncode == 0, done.stderr
        (folder / "outcomes").write_text(done.stdout)

    folder = made_once(tmp_path_factory, "fuzz-corpus", read)
    lines = map(json.loads, (folder / "outcomes").read_text().splitlines())
    return {(line["reader"], line["file"]): line for line in lines}


def test_every_reader_reads_good_files(outcomes):
    good = [outcome for (_, file), outcome in outcomes.items() if file.startswith("good")]
    assert {outcome["reader"] for outcome in good} == {*READERS}
    assert [outcome for outcome in good if outcome["kind"] != "read"] == []


def test_files_of_every_kind_of_source_are_tried():
    # Folders have a reader for each kind of their files, and libraries and hubs hold files of another kind.
    others = {"images", "text", "keras", "sklearn", "huggingface"}
    assert {reader.source for reader in READERS.values() if reader.source} == SOURCES.keys() - others


@pytest.mark.parametrize("reader", BOMBS)
def test_every_formats_worst_file_is_refused_within_its_memory(outcomes, reader):
    outcome = outcomes[reader, "bomb"]
    assert (outcome["kind"], outcome["said"] != "") == ("refused", True), outcome["said"]
    assert outcome["mib"] < _BOMB_MIB


@pytest.mark.parametrize("path", corpus(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_ever_found_is_no_fault(outcomes, path):
    outcome = outcomes[reader_of(path), path.name]
    assert outcome["kind"] in ("read", "refused"), outcome["said"]


@pytest.mark.parametrize(
    ("does", "seconds", "said"),
    [
        (lambda path: int(path.read_text()), 60, "ValueError: invalid literal"),
        (lambda path: bytearray(100 << 20), 60, "100 MiB"),
        (lambda path: [None for _ in iter(int, 1)], 1, "more than 1 s"),
        (lambda path: os._exit(7), 60, "the process ended with 7"),
        (lambda path: np.empty(1 << 45), 60, "MemoryError"),
    ],
)
def test_a_fault_is_seen_and_the_next_input_is_read(tmp_path, monkeypatch, does, seconds, said):
    monkeypatch.setattr(sandboxes, "MOST_SECONDS", seconds)
    monkeypatch.setattr(sandboxes, "MOST_MIB", 64)

    def read(path):
        return path.read_bytes() == b"good" or does(path)

    sandbox = Sandbox(read, tmp_path / "file", (InputError,))
    outcomes = [sandbox.call(content) for content in (b"good", b"bad", b"good")]
    sandbox.close()
    assert [outcome.kind for outcome in outcomes] == ["read", "fault", "read"]
    assert said in outcomes[1].said


def test_a_refusal_that_hides_a_lack_of_memory_is_a_fault(tmp_path):
    def read(path):
        try:
            raise MemoryError
        except MemoryError as error:
            raise InputError("damaged") from error

    sandbox = Sandbox(read, tmp_path / "file", (InputError,))
    assert sandbox.call(b"").kind == "fault"
    sandbox.close()
