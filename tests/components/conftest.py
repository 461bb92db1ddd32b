"""A small data set, a small model of it and its export, made once, and ways to run a step as a user does."""

import contextlib
import dataclasses
import importlib
import io
import json
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.components.preflight_training.warm import WarmCompiler
from tests.support.dataflow import dataflow  # noqa: F401 (fixture)
from tests.support.pictures import encode, encoded, image_folder  # noqa: F401 (fixtures)
from tests.support.sharing import made_once
from tpu_components.create_tfrecords import WriteParams, write_records
from tpu_components.export_model import exporting, verification
from tpu_components.export_model.comparison import Judge
from tpu_components.train_model import TrainParams, train_model

RunStep = Callable[..., subprocess.CompletedProcess[str]]

# Trains in a second and reaches 0.9; on one CPU in float32, so that every machine computes alike.
QUICK = TrainParams(
    model="digits_cnn",
    model_parameters={"filters": 16, "units": 64},
    epochs=3,
    batch_size_per_replica=32,
    learning_rate=0.005,
    backend="tensorflow",
    accelerator="cpu",
    num_replicas=1,
    precision="float32",
)

# The same with one dense layer, for tests that any model will do for: it compiles in half the time.
TINY = dataclasses.replace(QUICK, model="tests.components.preflight_training.dense:build_model", model_parameters={})

# Everything that the training step does beside Keras's own, and weight decay.
EVERYTHING: Mapping[str, Any] = {
    "random_flip": "horizontal",
    "random_crop_pixels": 1,
    "mixup_alpha": 0.2,
    "label_smoothing": 0.1,
    "ema_decay": 0.9,
    "optimizer": "adamw",
    "weight_decay": 0.01,
}


class _JudgeHere(Judge):
    """The same program with the same words, in this process; what it prints is read as ever."""

    def __init__(self, export_dir: Path, work: Path) -> None:
        self._words = [str(export_dir), str(work)]

    def __exit__(self, *_: object) -> None:
        pass

    def _send(self, line: str) -> None:
        self._words.append(line)

    def _finish(self) -> tuple[int, str, str]:
        stdout = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(stdout):
            patch.setattr(sys, "argv", [verification.__file__, *self._words])
            for name in ("tpu_components", "tpu_pipelines"):  # It keeps itself from importing them: they come back.
                patch.setitem(sys.modules, name, sys.modules.get(name))
            runpy.run_path(verification.__file__, run_name="__main__")
        return 0, stdout.getvalue(), ""


@contextlib.contextmanager
def judged_here() -> Iterator[None]:
    """Judge exports in this process, which has TensorFlow, where no test asks how their judge is kept apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporting, "Judge", _JudgeHere)
        yield


@pytest.fixture(name="judged_here")
def _judged_here() -> Iterator[None]:
    with judged_here():
        yield


@pytest.fixture(scope="session")
def quick() -> TrainParams:
    """Parameters of a training that takes a second."""
    return QUICK


@pytest.fixture(scope="session")
def tiny() -> TrainParams:
    """Parameters of a training of one dense layer."""
    return TINY


@pytest.fixture(scope="session")
def digits_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,259 digits to train on, 179 to validate, 359 to test. Not to be written to."""
    params = WriteParams("sklearn:digits", num_workers=1)
    folder = made_once(tmp_path_factory, "digits", lambda folder: write_records(params, folder / "records"))
    return folder / "records"


@pytest.fixture(scope="session")
def weighted_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 digits, 363 to train on, with weights 0, 0.5, 1 and 3 in a column. Not to be written to."""

    def write(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from sklearn.datasets import load_digits

        digits, rows = load_digits(), []
        for i in range(400):
            content = encoded(digits.images[i].astype(np.uint8))
            weight = (0.0, 0.5, 1.0, 3.0)[i % 4]
            rows.append({"image": content, "label": str(digits.target[i]), "confidence": weight})
        pq.write_table(pa.Table.from_pylist(rows), folder / "digits.parquet")
        columns = {"weight": "confidence"}
        source = f"parquet:{folder}/digits.parquet"
        write_records(
            WriteParams(source, test_fraction=0.0, columns=columns, num_workers=1, join_copies=False),
            folder / "records",
        )

    return made_once(tmp_path_factory, "weighted-digits", write) / "records"


@pytest.fixture(scope="session")
def trained_digits(digits_records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of the digits, as train_model wrote it. Not to be written to."""
    folder = made_once(
        tmp_path_factory, "trained-digits", lambda folder: train_model(QUICK, digits_records, folder / "model")
    )
    return folder / "model"


@pytest.fixture(scope="session")
def exported_digits(digits_records: Path, trained_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The small model's export as a KFP artifact, made by the component as a pipeline does. Not to be written to."""
    from kfp import dsl

    from tpu_components.export_model.component import export_model

    def make(folder: Path) -> None:
        export = dsl.Model(name="export", uri=str(folder / "export"))
        with judged_here():
            export_model.python_func(
                records=dsl.Dataset(name="records", uri=str(digits_records)),
                model=dsl.Model(name="trained", uri=str(trained_digits)),
                export=export,
                max_int8_accuracy_drop=0.05,  # A model this small suffers more than a real one.
                calibration_examples=100,
            )
        (folder / "metadata.json").write_text(json.dumps(export.metadata))

    folder = made_once(tmp_path_factory, "exported-digits", make)
    metadata = json.loads((folder / "metadata.json").read_text())
    return dsl.Model(name="export", uri=str(folder / "export"), metadata=metadata)


_WORDS = (
    "film plot scene actor story music camera script role end",
    "great lovely superb fine",
    "dull awful poor flat",
)


def write_reviews(root: Path, num_each: int = 60) -> None:
    """Reviews that a small model can tell apart, in folders per split and class."""
    draw = random.Random(0)
    neutral, *loaded = (words.split() for words in _WORDS)
    for split, share in (("train", 1.0), ("test", 0.5)):
        for name, words in zip(("pos", "neg"), loaded, strict=True):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(int(num_each * share)):
                text = draw.choices(neutral, k=draw.randint(2, 12)) + draw.choices(words, k=2)
                draw.shuffle(text)
                (folder / f"{i:03d}.txt").write_text(f"{split} {i}: " + " ".join(text) + "<br />")


@pytest.fixture(scope="session")
def export_dir(exported_digits: Any) -> Path:
    """The folder of the small model's export. Not to be written to."""
    return Path(exported_digits.path)


@pytest.fixture(scope="session")
def review_records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 short reviews to train on and 60 to test, as ids of 8 tokens."""

    def make(folder: Path) -> None:
        write_reviews(folder / "data")
        params = WriteParams(
            f"text:{folder}/data", validation_fraction=0.1, num_tokens=8, vocabulary_size=300, num_workers=1
        )
        write_records(params, folder / "records")

    return made_once(tmp_path_factory, "reviews", make) / "records"


@pytest.fixture(scope="session")
def trained_reviews(review_records: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small LSTM of the reviews, as train_model wrote it. Not to be written to."""
    params = dataclasses.replace(
        QUICK,
        model="imdb_lstm",
        model_parameters={"embedding": 8, "units": 4, "dropout": 0.1},
        epochs=8,
        batch_size_per_replica=8,
        learning_rate=0.02,
    )
    folder = made_once(
        tmp_path_factory, "trained-reviews", lambda folder: train_model(params, review_records, folder / "model")
    )
    return folder / "model"


@pytest.fixture(scope="session")
def exported_reviews(review_records: Path, trained_reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export. Not to be written to."""
    from tpu_components.export_model import ExportParams, export_model

    params = ExportParams(max_int8_accuracy_drop=0.1)

    def make(folder: Path) -> None:
        with judged_here():
            export_model(params, review_records, trained_reviews, folder / "export")

    return made_once(tmp_path_factory, "exported-reviews", make) / "export"


def command_of(step: str, params: Mapping[str, Any], **paths: Path) -> list[str]:
    """The command of one step: `paths` are its files, `params` the fields of its Params."""
    words = [sys.executable, "-m", f"tpu_components.{step}"]
    for name, value in {**paths, **params}.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, list | tuple):
            words += [flag, *(json.dumps(item) if isinstance(item, Mapping) else str(item) for item in value)]
        else:
            words += [flag, json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return words


@pytest.fixture(scope="session")
def step_command() -> Callable[..., list[str]]:
    """Make the command of one step."""
    return command_of


@pytest.fixture(scope="session")
def run_step() -> RunStep:
    """Run one step to its end in a process of its own."""

    def run(step: str, params: Any, **paths: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command_of(step, _fields(params), **paths), capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def run_step_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> RunStep:
    """Run one step's command line in this process, which has imported TensorFlow already; a stack trace is raised."""

    def run(step: str, params: Any, **paths: Path) -> subprocess.CompletedProcess[str]:
        words = command_of(step, _fields(params), **paths)
        monkeypatch.setattr("sys.argv", words[2:])
        code = importlib.import_module(f"tpu_components.{step}.__main__").main()
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def run_with_jax(warm: WarmCompiler) -> Callable[..., str]:
    """Run Python code where Keras is on JAX, or that needs the TPU compiler, with arguments; returns its stdout."""
    return warm.run


@pytest.fixture(scope="session")
def run_python() -> Callable[[str], str]:
    """Run Python code in a process of its own, where Keras may have another backend; returns its stdout."""

    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


def _fields(params: Any) -> Mapping[str, Any]:
    return params if isinstance(params, Mapping) else dataclasses.asdict(params)
