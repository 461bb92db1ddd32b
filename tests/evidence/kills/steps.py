"""The steps and the whole run on small data: their commands, and what they leave."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.evidence.kills.outcome import Outcome, outcome
from tests.evidence.kills.process import Command, Process

WAIT_SECONDS = 900.0
RUN = "run"
_NAME = "digits"
_NUM_IMAGES = 1100
_MODEL = """\
import keras
from keras import layers


def build_model(image_shape, num_classes):
    return keras.Sequential(
        [
            keras.Input(image_shape, dtype="uint8"),
            layers.Rescaling(1 / 255),
            layers.Flatten(),
            layers.Dropout(0.1),
            layers.Dense(num_classes, activation="softmax", dtype="float32"),
        ]
    )
"""
# A checkpoint after every step, so that a kill falls into every part of writing one too.
_TRAINING = {"batch_size_per_replica": 128, "learning_rate": 0.01, "checkpoint_seconds": 0}
_EPOCHS = 4
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
# In the cache of runs, the artifact that a step leaves, and the folder of the run that shows it.
_PUBLISHED = {
    "records": "records",
    "preflight": "preflight",
    "trained": "model",
    "evaluation": "evaluation",
    "export": "export",
    "deployment": "deployment",
}


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, or the whole run.

    Attributes:
        name: Its name, or `run`.
        module: Its command.
        words: The command's arguments in a folder.
        outputs: The folders and files that it leaves there, as patterns. Each appears whole or not at all.
        copies: What a folder holds before it runs: copies of these folders, by their names in it.
    """

    name: str
    module: str
    words: Callable[[Path], Mapping[str, Any]]
    outputs: Sequence[str]
    copies: Mapping[str, Path] = dataclasses.field(default_factory=dict)

    def prepare(self, folder: Path) -> None:
        """Make the folder that it runs in."""
        (folder / "tmp").mkdir(parents=True)
        for name, source in self.copies.items():
            if source.is_dir():
                shutil.copytree(source, folder / name)

    def start(self, folder: Path, dies_at: int | None = None) -> Process:
        """Start it in a folder."""
        own = {"TMPDIR": str(folder / "tmp"), "TPU_PIPELINES_CACHE_DIR": str(folder / "cache")}
        command = Command(self.module, _flags(self.words(folder)), {**_ENVIRONMENT, **own}, folder)
        return Process(command, log_of(folder), dies_at)

    def finish(self, folder: Path) -> Process:
        """Run it in a folder to its end.

        Raises:
            RuntimeError: If it fails.
        """
        process = self.start(folder)
        code = process.wait(WAIT_SECONDS)
        if code is None:
            process.kill()
        if code != 0:
            raise RuntimeError(f"{self.name} ended with {code}: {log_of(folder).read_text()[-2000:]}")
        return process

    def left_in(self, folder: Path) -> dict[str, Outcome]:
        """What is there of each of its outputs, by the output's path."""
        paths = sorted({path for pattern in self.outputs for path in folder.glob(pattern)})
        return {path.relative_to(folder).as_posix(): outcome(path, folder) for path in paths}

    def cached_in(self, folder: Path) -> list[tuple[str, Outcome]]:
        """What a run's cache holds of its outputs, by the path of the same output in the run."""
        found = [
            (name, path)
            for artifact, name in _PUBLISHED.items()
            for path in folder.glob(f"runs/.cache/{_NAME}/training-pipeline-*/*/{artifact}")
        ]
        return [(f"runs/{_NAME}/{name}", outcome(path, folder)) for name, path in found]


def log_of(folder: Path) -> Path:
    """Where the command in a folder prints to."""
    return folder.with_suffix(".log")


def leftovers(folder: Path) -> list[str]:
    """What is still half written in a workspace or a registry."""
    places = [path for name in ("runs", "registry") for path in folder.glob(name)]
    halves = [path for place in places for end in ("tmp", "old") for path in place.rglob(f".*.{end}")]
    return sorted(path.relative_to(folder).as_posix() for path in halves)


def _flags(values: Mapping[str, Any]) -> list[str]:
    words = list(values.get("", []))
    for name, value in values.items():
        if name:
            words += ["--" + name.replace("_", "-"), json.dumps(value) if isinstance(value, dict) else str(value)]
    return words


def write_inputs(shared: Path) -> None:
    """A folder of images for each class, and a model's file."""
    from PIL import Image

    from tpu_components.core.sources.kinds import list_examples
    from tpu_components.core.sources.params import WriteParams

    digits = list_examples(WriteParams("sklearn:digits"))
    for i, (pixels, label) in enumerate(zip(digits.images[:_NUM_IMAGES, ..., 0], digits.labels, strict=False)):
        path = shared / "images" / str(label) / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (shared / "model.py").write_text(_MODEL)


def make_steps(shared: Path) -> list[Step]:
    """The steps in their order and the run last; each reads what those before it left in `shared/<step>`."""
    model = str(shared / "model.py")
    training = {"model": model, **_TRAINING}
    records = {"records": shared / "create_tfrecords" / "records"}
    trained = {**records, "model": shared / "train_model" / "model"}
    exported = {**trained, "export": shared / "export_model" / "export"}
    deployed = {**exported, "evaluation": shared / "evaluate_model" / "evaluation"}
    champion = shared / "champion" / "registry"
    source = f"images:{shared / 'images'}"
    host = {"backend": "tensorflow", "accelerator": "cpu", "num_replicas": 1}
    settings = {
        "data.source": source,
        "data.num_workers": 2,
        "model": model,
        **{f"training.{name}": value for name, value in {**_TRAINING, **host, "epochs": _EPOCHS}.items()},
        "gate.minimum": {},
        "export.calibration_examples": 20,
    }
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def step(name: str, output: str, words: Mapping[str, Any], *outputs: str, **copies: Path) -> Step:
        def all_words(folder: Path) -> dict[str, Any]:
            here = {"registry": folder / "registry", "model_name": _NAME} if name == "deploy_model" else {}
            return {**words, **here, "output": folder / output}

        return Step(name, f"tpu_components.{name}", all_words, (output, *outputs), copies)

    return [
        step("create_tfrecords", "records", {"source": source, "num_workers": 2}),
        step("preflight_training", "preflight", {**records, **training, "backend": "jax", "epochs": _EPOCHS}),
        step("train_model", "model", {**records, **training, **host, "epochs": _EPOCHS}),
        step("evaluate_model", "evaluation", {**trained, **host, "champion": f"{champion}/{_NAME}@champion"}),
        step("export_model", "export", {**trained, "calibration_examples": 20}),
        step(
            "deploy_model", "deployment", deployed, "registry/*/versions/[0-9]*", "registry/*/*.json", registry=champion
        ),
        step(
            "predict_batch",
            "predictions",
            {"export": exported["export"], "source": source, "part_examples": 100, "num_workers": 2},
        ),
        Step(
            RUN,
            "tpu_pipelines.cli",
            lambda folder: {"": [RUN, _NAME, *sets], "workspace": folder / "runs"},
            (
                *(f"runs/{_NAME}/{name}" for name in (*_PUBLISHED.values(), "summary.json")),
                "runs/registry/*/versions/[0-9]*",
                "runs/registry/*/*.json",
            ),
            {"cache": shared / RUN / "cache"},
        ),
    ]


def make_champion(steps: Sequence[Step], shared: Path) -> None:
    """Register a model that has learnt less, for the others to beat; the records must be there."""
    folder = shared / "champion"
    places = {"model": folder / "model", "export": folder / "export", "evaluation": folder / "evaluation"}
    changes: dict[str, dict[str, Any]] = {
        "train_model": {"epochs": 2},
        "evaluate_model": {"model": places["model"], "champion": ""},
        "export_model": {"model": places["model"]},
        "deploy_model": places,
    }
    (folder / "tmp").mkdir(parents=True)
    for step in steps:
        if step.name in changes:
            words, change = step.words, changes[step.name]
            other = dataclasses.replace(step, words=lambda here, words=words, change=change: {**words(here), **change})
            other.finish(folder)
