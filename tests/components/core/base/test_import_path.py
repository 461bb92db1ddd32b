"""A folder in which others have put modules under our names and those of libraries."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import QUICK
from tpu_components.core.base import import_path
from tpu_components.core.examples.interface import ImageInput, Interface
from tpu_components.core.models import lookup

BIN = Path(sys.executable).parent
NAMES = (
    "tpu_components",
    "tpu_pipelines",
    "kfp",
    "joblib",
    "keras",
    "numpy",
    "yaml",
    "httptools",
    "uvloop",
    "brotli",
    "uvicorn",
)


@pytest.fixture
def hostile(tmp_path):
    """The folder; `imported` in it names the modules of it that were imported."""
    folder = tmp_path / "hostile"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"open({str(folder / 'imported')!r}, 'a').write(__name__ + ' ')\n")
    return folder


def run(folder, *words):
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    return subprocess.run(
        list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def imported(folder):
    file = folder / "imported"
    return file.read_text().split() if file.exists() else []


def test_the_folder_would_be_imported_from(hostile):
    run(hostile, sys.executable, "-m", "kfp.dsl.executor_main")
    assert imported(hostile) == ["kfp"]


@pytest.mark.parametrize(
    "words",
    [
        ["machines", "--generation", "v5e"],
        ["compile", "digits", "--target", "kubeflow", "--output", "pipeline.yaml"],
        ["predict", "nothing", "x.png"],
        ["serve", "gs://", "--port", "0"],
    ],
)
def test_a_command_imports_nothing_from_the_current_folder(hostile, words):
    done = run(hostile, BIN / "tpu-pipelines", *words)
    assert done.returncode in (0, 2), done.stderr
    assert imported(hostile) == []


def test_children_import_nothing_from_the_current_folder(hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    with import_path.safe_children():
        code = "import sys; print(sys.flags.safe_path, ''.join(sys.path[:1]))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.startswith("True ")
        assert str(hostile) not in done.stdout
    assert "PYTHONSAFEPATH" not in os.environ
    monkeypatch.setattr("sys.path", [str(hostile), *sys.path])
    import_path.leave_current_folder()
    assert str(hostile) not in sys.path


def test_a_users_model_is_found_in_the_current_folder_while_it_is_imported_and_no_longer(tmp_path, monkeypatch):
    (tmp_path / "parts_of_mine.py").write_text("UNITS = 3\n")
    (tmp_path / "model_of_mine.py").write_text(
        "import keras\n"
        "from keras import layers\n"
        "def build(image_shape, num_classes):\n"
        "    import parts_of_mine\n"
        "    given = [keras.Input(image_shape, dtype='uint8'), layers.Rescaling(1 / 255), layers.Flatten()]\n"
        "    added = [layers.Dense(parts_of_mine.UNITS), layers.Dense(num_classes, activation='softmax')]\n"
        "    return keras.Sequential(given + added)\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    interface = Interface(ImageInput((2, 2, 1), "raw"), 5)
    lookup.check_model("model_of_mine:build")
    assert lookup.build_model("model_of_mine:build", interface, {}).output_shape == (None, 5)
    assert sys.path == before
    assert {path.name for path in lookup.source_files("model_of_mine:build")} == {
        "model_of_mine.py",
        "parts_of_mine.py",
    }


@pytest.mark.slow  # A whole run: two minutes.
def test_no_step_and_no_worker_imports_from_the_current_folder(hostile):
    flags = ["--set", "machine=v5e-1", "--set", "data.num_workers=2", *QUICK]
    done = run(hostile, BIN / "tpu-pipelines", "run", "digits", "--workspace", hostile.parent / "runs", *flags)
    assert done.returncode == 0, done.stderr[-3000:]
    assert imported(hostile) == []
