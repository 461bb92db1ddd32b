"""Runs commands by a Python with Apache Beam, which TPU_PIPELINES_BEAM_PYTHON names; `make beam-env` makes one."""

import os
import subprocess
from collections.abc import Mapping, Sequence

import pytest

from tests.support.cli import REPOSITORY

PYTHON = os.environ.get("TPU_PIPELINES_BEAM_PYTHON", "")


def require_beam() -> None:
    """Skip the test where there is no Beam."""
    if not PYTHON:
        pytest.skip("needs Apache Beam: make beam-env, then TPU_PIPELINES_BEAM_PYTHON=.beam/bin/python")


def command(*words: object) -> list[str]:
    """The command `python -m tpu_components.create_tfrecords.engines beam …`."""
    return [PYTHON, "-m", "tpu_components.create_tfrecords.engines", "beam", *map(str, words)]


def answering(*words: object) -> list[str]:
    """The command `python -m tpu_components.predict_batch --engine beam …`."""
    return [PYTHON, "-m", "tpu_components.predict_batch", "--engine", "beam", *map(str, words)]


def run(words: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of that Python, with this project's sources, to its end."""
    names = {**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})}
    return subprocess.run(words, capture_output=True, text=True, env=names, check=False, timeout=300)
