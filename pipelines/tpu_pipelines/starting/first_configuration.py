"""Writes a first configuration for a data set, based on an overview of the data, and explains the chosen values."""

import dataclasses
import importlib
import json
import math
import re
import shlex
import statistics
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.base.typed_values import changed_values
from tpu_components.core.examples.artifacts import TEST, TRAIN, VALIDATION
from tpu_components.core.examples.interface import CORPUS, IMAGE, TASKS, TEXT
from tpu_components.core.files import storage
from tpu_components.core.machines.machine_spec import CHEAPEST_MACHINE
from tpu_components.core.metrics.definitions import HIGHER, direction
from tpu_components.core.models.ready import REGISTRY
from tpu_components.core.sources.kinds import find_location
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.source_ref import SourceRef
from tpu_pipelines.config.configuration import RUN_NAME, overridden
from tpu_pipelines.config.schema import SCHEMA_FILE, as_text
from tpu_pipelines.starting.data_copy import plan_copy
from tpu_pipelines.starting.data_overview import DataOverview

WORKFLOW_FILE = Path(".github/workflows/retrain.yml")
_STARTERS = Path(__file__).parents[1] / "starters"
_MODELS = {IMAGE: "images", TEXT: "texts", CORPUS: "corpus"}
_ANSWERS = {
    "classification": ("one class of several", "A probability for every class."),
    "multi_label": ("any number of labels", "An independent probability for every label."),
    "regression": ("numbers", "Standardized numbers. The units are restored later."),
    "language_model": ("the next character of each", "A probability for every character."),
}
_SIDES = (32, 48, 64, 96)  # Sides of the training images; a CPU is slow with larger ones.
_SMALL_PIXELS = 128 * 128  # Images of one size are not resized up to this number of pixels.
_WANTED_STEPS = 1_500
_TEXT_LEARNING_RATE = 0.003
_BETTER = 0.1  # By how much the macro F1 must exceed that of a constant answer to pass the first gate.
_WIDTH = 110
_AS_THE_MODEL = "As the model requires."
_COMPILED = re.compile(rb'\.compile\(|"compile_config": \{"')


@dataclasses.dataclass(frozen=True)
class Start:
    """Files for a first run.

    Attributes:
        config_path: Path of the configuration.
        files: Content of each file to write, by path.
        hints: Hints for the user.
    """

    config_path: Path
    files: Mapping[Path, str]
    hints: tuple[str, ...]

    def write(self, overwrite: bool = False) -> None:
        """Write the files.

        Raises:
            InputError: If a file exists and `overwrite` is not set, or a file cannot be written.
        """
        # The schema is generated, and the same for all configurations of a folder.
        there = [str(path) for path in self.files if path.name != SCHEMA_FILE and path.exists()]
        if there and not overwrite:
            raise InputError(
                f"Cannot overwrite {', '.join(there)}: the files exist. Use another --name or --output, or overwrite "
                "them with --force."
            )
        for path, content in self.files.items():
            storage.require_writable(path.parent)
            storage.write_bytes(path, content.encode())

    def remove(self) -> None:
        """Remove the files that `write` has written, except the schema, which other configurations also use."""
        for path in self.files:
            if path.name != SCHEMA_FILE:
                path.unlink(missing_ok=True)


def name_of(place: str) -> str:
    """Return a name for runs, derived from the path of the data.

    A name that a workspace reserves, such as `registry`, gets the ending `-data`.

    Example:
        >>> name_of("images:/data/My flowers/"), name_of("csv:reviews 2.csv")
        ('My-flowers', 'reviews-2')
        >>> name_of("images:registry")
        'registry-data'
    """
    words = re.sub(r"[^\w.-]+", "-", Path(SourceRef.parse(place).place.folder).stem).strip("-.")
    name = words[:64] or "first"
    return name if name in RUN_NAME else f"{name[:59]}-data"


def plan_start(
    overview: DataOverview,
    name: str,
    model: str = "",
    folder: Path = Path(),
    overrides: Sequence[str] = (),
    workflow: bool = False,
) -> Start:
    """Choose a configuration for the data, and a model if the user has not named one.

    Args:
        overview: Overview of the data.
        name: Name of the runs, and of the files.
        model: Name or file of the model. If empty, a model is written.
        folder: Folder for the configuration and the model.
        overrides: Changes to the chosen values, each as `section.key=value`.
        workflow: Whether to write a GitHub workflow that retrains.

    Raises:
        InputError: If an override has the wrong form.
    """
    config_path = folder / f"{name}.yaml"
    files = {}
    if not model:
        path = folder / f"{name.replace('-', '_').replace('.', '_')}_model.py"
        model, files[path] = str(path), _write_model(overview, name)
    data, reasons = _choose_data(overview, model)
    training, more = _choose_training(overview, is_ours=bool(files))
    if _is_compiled(model):  # A learning rate schedule would replace the model's optimizer.
        del training["learning_rate_schedule"], training["warmup_epochs"]
    raw: dict[str, Any] = {"name": name, "data": data, "model": model, "training": training}
    if overview.is_imbalanced:
        training["balance_classes"] = True
        more["training.balance_classes"] = (
            "The classes differ greatly in size. Balancing gives all classes the same weight."
        )
        constant = 1 / len(overview.class_examples)  # Macro F1 of always answering one class is at most this.
        raw["gate"] = {"beat_baseline": False, "minimum": {"macro_f1": round(constant + _BETTER, 2)}}
        more["gate.beat_baseline"] = "Always predicting the most frequent class gives a high accuracy, so use macro_f1."
    if workflow:
        raw["machine"] = CHEAPEST_MACHINE
        more["machine"] = "Machine for the runs of the workflow; `run` trains on this computer."
    overridden(raw, overrides)
    has_stages = isinstance(raw["training"], dict) and raw["training"].get("stages")  # Overrides are not checked yet.
    if has_stages and not any(text.startswith("training.epochs=") for text in overrides):
        raw["training"].pop("epochs", None)  # The stages have their own numbers of epochs.
    files = {config_path: _as_yaml(raw, reasons | more, overview, config_path)} | files
    files[folder / SCHEMA_FILE] = as_text()
    hints = _hints(overview)
    if workflow:
        steps = _steps_before_retraining(config_path, str(raw["data"]["source"]), [*files, WORKFLOW_FILE])
        files[WORKFLOW_FILE] = retraining_workflow(str(config_path), steps)
        hints += steps
    return Start(config_path, files, tuple(hints))


def _steps_before_retraining(config_path: Path, source: str, files: Sequence[Path]) -> list[str]:
    """Return the steps that the user must do, in order, before the workflow can retrain a configuration."""
    config = shlex.quote(str(config_path))
    steps = []
    if (location := find_location(SourceRef.parse(source))) and not location.is_remote:
        copy = plan_copy(source)
        steps.append(
            f"copy the data to a bucket, {copy.command}, and set data.source={copy.source} in {config_path}, because "
            "the workflow cannot read local files"
        )
    steps += [
        (
            "push an image, and set TPU_PIPELINES_PROJECT, TPU_PIPELINES_REGION, TPU_PIPELINES_BUCKET and "
            f"TPU_PIPELINES_IMAGE. `tpu-pipelines check {config} --target vertex` lists what is missing"
        ),
        "set the same variables in the repository, and TPU_PIPELINES_REPOSITORY (OWNER/NAME), TPU_PIPELINES_COMMIT, "
        "WORKLOAD_IDENTITY_PROVIDER and WORKLOAD_IDENTITY_ACCOUNT. The workflow installs tpu-pipelines from that "
        "commit, and signs in without a key",
        f"commit {', '.join(map(str, files))}, and push to main",
    ]
    return [f"before retraining, step {number} of {len(steps)}: {step}" for number, step in enumerate(steps, 1)]


def retraining_workflow(config: str, steps: Sequence[str] = ()) -> str:
    """Return the GitHub workflow, as YAML, that retrains a configuration.

    Args:
        config: Path of the configuration in the repository, or name of an example in this package.
        steps: Steps that the user must do before the first retraining. They are written as comments at the top.
    """
    # Names must not leave their comment line.
    comments = "".join(f"# {' '.join(in_one_line(step).split())}\n" for step in steps)
    # In a GitHub expression, a quote is written twice.
    ready = (_STARTERS / "retrain.yaml").read_text()
    quoted = config.replace("'", "''")
    environment = {"env": {"CONFIG": f"${{{{ vars.TPU_PIPELINES_CONFIG || '{quoted}' }}}}"}}
    _, line = yaml.safe_dump(environment, width=1 << 16, allow_unicode=True).split("\n", maxsplit=1)
    return comments + ready.replace("  CONFIG: ${{ vars.TPU_PIPELINES_CONFIG || 'digits' }}\n", line)


def _write_model(overview: DataOverview, name: str) -> str:
    """Return the code of a model for the data, from which the user can start."""
    import jinja2

    task = TASKS[overview.params.asked]
    answer, ending = _ANSWERS[task.name]
    activation = "" if task.activation == "linear" else f'activation="{task.activation}", '
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_STARTERS),
        autoescape=False,  # Templates of Python, filled with our own names.
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    template = environment.get_template(f"{_MODELS[overview.kind]}.py.jinja")
    return template.render(name=name, answer=answer, ending=ending, size=task.size_fact, activation=activation)


Reasons = dict[str, str]


def _choose_data(overview: DataOverview, model: str) -> tuple[dict[str, Any], Reasons]:
    params = overview.params
    data = changed_values(params)
    reasons = Reasons()
    shape = _input_shape(model)
    if overview.kind == IMAGE and not params.image_size and (size := _choose_size(overview, shape)):
        data["image_size"], reasons["data.image_size"] = size
    least = _least_image_shape(model)
    if least and overview.sizes and not params.image_size:
        sides = data.get("image_size") or [min(sides) for sides in zip(*overview.sizes, strict=True)]
        if any(side < smallest for side, smallest in zip(sides, least, strict=False)):
            data["image_size"] = [max(side, smallest) for side, smallest in zip(sides, least, strict=False)]
            reasons["data.image_size"] = "The model does not accept smaller images."
    shape = shape or least
    if len(shape) == 3 and shape[-1] in (1, 3) and {shape[-1]} != set(overview.channels) and not params.channels:
        data["channels"], reasons["data.channels"] = shape[-1], _AS_THE_MODEL
    elif len(overview.channels) > 1 and not params.channels:
        data["channels"] = 3
        reasons["data.channels"] = "The data contain grey and colour images. 3 makes all images colour, 1 all grey."
    if overview.bad_share and not params.max_bad_fraction:
        data["max_bad_fraction"] = min(0.5, math.ceil(200 * overview.bad_share) / 100)
        reasons["data.max_bad_fraction"] = "Largest share of bad examples. They are quarantined; see above."
    if overview.kind == TEXT and overview.lengths:
        longest = sorted(overview.lengths)[int(0.9 * (len(overview.lengths) - 1))]  # The 90% quantile.
        data["num_tokens"] = min(400, max(16, 16 * math.ceil(longest / 16)))
        reasons["data.num_tokens"] = (
            "Number of words that the model reads. Longer texts are truncated; see data.truncate."
        )
    if overview.kind == TEXT and len(shape) == 1 and shape[0] and params.num_tokens == WriteParams.num_tokens:
        data["num_tokens"], reasons["data.num_tokens"] = shape[0], _AS_THE_MODEL
        known = re.search(rb'"class_name": "Embedding".*?"input_dim": (\d+)', _described(Path(model)))
        if known and params.vocabulary_size == WriteParams.vocabulary_size:
            data["vocabulary_size"], reasons["data.vocabulary_size"] = int(known[1]), _AS_THE_MODEL
    if params.asked == "language_model":
        # The user's value is kept, and the other value follows from it.
        is_set = params.num_tokens != WriteParams.num_tokens
        tokens = params.num_tokens if is_set else max(128, 2 * params.context_tokens)
        data |= {"num_tokens": tokens, "context_tokens": params.context_tokens or tokens // 2}
        reasons["data.num_tokens"] = (
            "Characters of a passage. The evaluation reads the first context_tokens without scoring them."
        )
    if not overview.has_splits:
        data |= {"validation_fraction": params.validation_fraction, "test_fraction": params.test_fraction}
        reasons["data.validation_fraction"] = "Held out by hash, so that every machine holds out the same examples."
    return data, reasons


def _choose_size(overview: DataOverview, shape: Sequence[int | None]) -> tuple[list[int], str] | None:
    if len(shape) == 3 and all(shape[:2]):
        return [int(side or 0) for side in shape[:2]], _AS_THE_MODEL
    sizes = set(overview.sizes)
    if not sizes or (len(sizes) == 1 and math.prod(overview.sizes[0]) <= _SMALL_PIXELS):
        return None
    typical = statistics.median(min(size) for size in overview.sizes)
    side = max((side for side in _SIDES if side <= typical), default=max(8, int(typical)))
    return [side, side], "Height and width of all images. Larger images show more detail and take longer."


def _is_compiled(model: str) -> bool:
    """Return True if a model's file seems to compile the model. The code is searched, not run."""
    path = Path(model)
    return path.suffix in (".py", ".keras") and path.is_file() and bool(_COMPILED.search(_described(path)))


def _described(path: Path) -> bytes:
    """Return the content of a .py file, or the model's configuration (`config.json`) in a .keras file.

    If the file is missing or damaged, return an empty result.
    """
    try:
        if path.suffix == ".py":
            return path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            return archive.read("config.json")
    except (OSError, KeyError, zipfile.BadZipFile):
        return b""  # The loader reports a damaged file.


def _input_shape(model: str) -> tuple[int | None, ...]:
    """Return the shape of a .keras model's input, without the batch axis. Sizes that may vary are None.

    Return an empty tuple if the model is not a .keras file, or the file does not contain the shape.
    """
    shape = re.search(rb'"batch_shape": (\[null(?:, (?:\d+|null))+\])', _described(Path(model)))
    return tuple(json.loads(shape[1])[1:]) if shape and model.endswith(".keras") else ()


def _least_image_shape(model: str) -> tuple[int, ...]:
    """Return the smallest height and width, and the number of channels, that a ready-made model accepts.

    Return an empty tuple if the model has no such limits, or is not a ready-made model.
    """
    module = importlib.import_module(REGISTRY[model]) if model in REGISTRY else None
    least: tuple[int, ...] = getattr(module, "LEAST_IMAGE_SHAPE", ())
    return least


def batch_for(examples: int) -> int:
    """Return a batch size for a number of training examples.

    The batch size is a power of two from 8 to 128. With fewer than 8 examples, it is the number of examples. With 160
    or more examples, an epoch has at least 20 steps, so that even a short run of three epochs gets past the warmup.

    Example:
        >>> batch_for(63), batch_for(1259), batch_for(50_000)
        (8, 32, 128)
    """
    return min(128, max(8, 2 ** int(math.log2(max(1, examples / 20)))), max(1, examples))


def _choose_training(overview: DataOverview, is_ours: bool) -> tuple[dict[str, Any], Reasons]:
    examples = overview.split_examples[TRAIN]
    batch = batch_for(examples)
    epochs = min(40, max(10, round(_WANTED_STEPS / math.ceil(examples / batch))))
    training = {
        "epochs": epochs,
        "batch_size_per_replica": batch,
        "learning_rate_schedule": "cosine",
        "warmup_epochs": 0.5,
    }
    reasons = {
        "training.epochs": "Maximum. More epochs help while the validation loss still falls.",
        "training.batch_size_per_replica": f"For {examples:,} training examples. On a TPU, use 128 or more.",
    }
    if is_ours and overview.kind == TEXT:  # Word vectors start at random, and each batch changes few of them.
        training["learning_rate"] = _TEXT_LEARNING_RATE
        reasons["training.learning_rate"] = "With Keras's default of 0.001, word vectors change little in a short run."
    if VALIDATION in overview.split_examples:
        training["early_stopping_epochs"] = max(5, epochs // 4)
    return training, reasons


def _hints(overview: DataOverview) -> list[str]:
    hints = []
    examples = overview.split_examples.get(TEST, 0)
    if examples < 100:
        hints.append(
            f"{examples:,} test examples can distinguish only models that differ greatly. More data would help"
        )
    if overview.is_imbalanced:
        hints.append("the classes differ greatly in size, so they are balanced in training and judged by macro_f1")
    return hints


_MACHINE = "# machine: v5e-1    # TPU for training and preflight; `tpu-pipelines machines` lists the choices.\n"
_TAIL = """\
gate:    # By default, a model must beat the best constant prediction and the previous champion to be promoted.
  # {side}: {{{metric}: {value}}}    # If the model does not reach this, the exit code is 3.
"""


def _as_yaml(raw: Mapping[str, Any], reasons: Reasons, overview: DataOverview, path: Path) -> str:
    # Names from the data must not leave their comment line.
    lines = [f"# yaml-language-server: $schema={SCHEMA_FILE}"]
    lines += [f"# {' '.join(in_one_line(line).split())}" for line in overview.lines()]
    place = in_one_line(shlex.quote(str(path)))
    lines += [f"# Check:  tpu-pipelines check {place}", f"# Run:    tpu-pipelines run {place}"]
    for section, values in raw.items():
        if isinstance(values, dict):
            lines.append(f"{section}:")
            lines += [line for key, value in values.items() for line in _entry(section, key, value, reasons)]
        else:
            reason = f"    # {reasons[section]}" if section in reasons else ""
            lines.append(f"{section}: {_scalar(values)}{reason}")
    judged = TASKS[overview.params.asked].judged
    side = "minimum" if direction(judged) == HIGHER else "maximum"
    tail = "" if "gate" in raw else _TAIL.format(side=side, metric=judged, value=_VALUES.get(judged, 0.9))
    return "\n".join(lines) + "\n" + _MACHINE * ("machine" not in raw) + tail


_VALUES = {"bits_per_character": 2.5, "r2": 0.8, "micro_f1": 0.8}


def _entry(section: str, key: str, value: Any, reasons: Reasons) -> list[str]:
    line = f"  {key}: {_scalar(value)}"
    reason = reasons.get(f"{section}.{key}", "")
    if not reason:
        return [line]
    return [f"{line}    # {reason}"] if len(line) + len(reason) < _WIDTH else [f"  # {reason}", line]


def _scalar(value: Any) -> str:
    """Return a value as YAML on one line. JSON is YAML, and plain words need no quotes."""
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./-]*", value)
    is_word = is_plain and value.lower() not in ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    return value if is_word else json.dumps(value, ensure_ascii=False)
