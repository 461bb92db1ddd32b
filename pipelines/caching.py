"""Keys under which a local run finds a step's outputs again: what goes in, and the code that works on it."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from components import artifacts, storage
from components.create_tfrecords.sources import Listing
from components.models import source_files
from components.preflight_training.compiler import versions as compiler_versions
from pipelines.config import Config

STEPS = ("create_tfrecords", "preflight_training", "train_model", "evaluate_model", "export_model", "deploy_model")
_COMPONENTS_DIR = Path(artifacts.__file__).parent
_CODE = (".py", ".jinja", ".css", ".json")
# Libraries that decide what a step computes.
_LIBRARIES = ("tensorflow", "keras", "numpy", "ai-edge-litert", "simplejpeg", "pillow", "scikit-learn", "jax")
# What changes how fast a step runs, never what it gives.
_WITHOUT_EFFECT = ("num_workers", "checkpoint_seconds", "compile_timeout_seconds", "compile_memory_mib")


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _hash_files(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in paths if path.is_file()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def code_version(step: str) -> str:
    """A fingerprint of everything that a step runs: its own package, what steps share, and the libraries' versions."""
    own = [path for folder in (step, "models") for path in (_COMPONENTS_DIR / folder).rglob("*")]
    files = [path for path in (*_COMPONENTS_DIR.glob("*"), *own) if path.suffix in _CODE]
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return _digest(_hash_files(files), versions)


def data_version(listing: Listing, memo: Path) -> str:
    """The fingerprint of a source's content, remembered in `memo` for as long as no file's size or time changes."""
    key = listing.stat_digest()
    path = memo / f"{key}.txt"
    if not path.is_file():
        storage.write_bytes(path, listing.content_digest().encode())
    return path.read_text()


def _params(params: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(params).items() if name not in _WITHOUT_EFFECT}


def lineage(config: Config) -> dict[str, Any]:
    """What a registry records of a run beside what its artifacts say: its name, its configuration, its code."""
    left_out = {"preflight_training": config.preflight is None, "deploy_model": config.deploy is None}
    code = {step: code_version(step) for step in STEPS if not left_out.get(step)}
    return {"run": config.name, "config": _decisive(config), "code": code}


def _decisive(config: Config) -> dict[str, Any]:
    """A configuration without where else it may run, and how long it waits for that: these make it no other run."""
    plain = config.as_dict()
    for key in ("fallbacks", "max_wait_seconds"):
        plain.get("machine", {}).pop(key, None)
    return plain


def fingerprints(config: Config, data: str, image: str = "") -> dict[str, str]:
    """What a run follows from: short digests of its `data`, its `configuration` and its `code`.

    Args:
        config: The run's configuration.
        data: The `data_version` of its source, or what else stands for it.
        image: What its steps run in.
    """
    code = ({step: code_version(step) for step in STEPS}, _hash_files(source_files(config.training.model)), image)
    parts = {"data": data, "configuration": _decisive(config), "code": code}
    return {name: _digest(part)[:12] for name, part in parts.items()}


def step_keys(config: Config, data: str, opponent: str = "") -> dict[str, str]:
    """A key per step.

    Args:
        config: The run's configuration.
        data: The `data_version` of its source.
        opponent: Digest of the model that the registry sets against this one; empty for none.

    Returns:
        Equal keys mean equal outputs: a key covers the step's parameters, its code, and the keys of what it reads.
        Where an alias stands is no output: whoever takes deploy_model from a cache looks whether it still stands there.
    """
    model_files = _hash_files(source_files(config.training.model))
    champion, champion_files = config.gate.champion, opponent
    if storage.is_remote(champion):
        champion_files = _digest([dataclasses.astuple(file) for file in storage.list_files(champion)])
    elif champion and Path(champion).is_dir():
        champion_files = _hash_files(Path(champion).rglob("*.*"))
    records = _digest(code_version("create_tfrecords"), _params(config.data), data)
    trained = _digest(code_version("train_model"), _params(config.training), model_files, records)
    preflight, deploy = (_params(params) if params else None for params in (config.preflight, config.deploy))
    evaluated = _digest(code_version("evaluate_model"), _params(config.gate), champion_files, trained)
    exported = _digest(code_version("export_model"), _params(config.export), trained)
    return {
        "create_tfrecords": records,
        "preflight_training": _digest(
            code_version("preflight_training"), preflight, compiler_versions(), model_files, records
        ),
        "train_model": trained,
        "evaluate_model": evaluated,
        "export_model": exported,
        "deploy_model": _digest(code_version("deploy_model"), deploy, evaluated, exported),
    }
