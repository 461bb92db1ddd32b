"""Cache keys and fingerprints of steps: digests of their inputs and their code."""

import dataclasses
import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_components.core.base import fingerprint
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.fingerprint import Code, Tracer, digest_files
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.models.lookup import model_code
from tpu_components.core.sources.listing import Listing
from tpu_components.preflight_training.compiling import compile_cache, sandbox
from tpu_components.preflight_training.compiling.outcome import versions as compiler_versions
from tpu_pipelines.config.configuration import Config
from tpu_pipelines.config.steps import STEP_TABLE, STEPS

# Parameters that change where and how fast a step runs, but not its outputs.
_WITHOUT_EFFECT = (
    *("num_workers", "engine", "engine_tasks", "beam_options"),
    *("checkpoint_seconds", "compile_timeout_seconds", "compile_memory_mib"),
    "initial_model",  # The key contains the model's digest instead of its name.
)


@functools.cache
def step_codes() -> dict[str, Code]:
    """Return the code of every step, by the step's name.

    A step's code is the module of its component, and all modules that this module imports directly or indirectly. To
    make later calls faster, the imports of each file are cached on disk until the file changes.
    """
    own = digest_files({"": Path(fingerprint.__file__)})
    memo = sandbox.default_cache_dir() / f"references-{own[:16]}-{platform.python_version()}.json"
    kept = _read_references(compile_cache.recall(memo, Mapping[str, Any]) or {})
    fingerprint.references_known.update(kept)
    tracer = Tracer()
    codes = {step: tracer.code_of([f"tpu_components.{step}.component"]) for step in STEPS}
    used = fingerprint.references_known
    if used.keys() != kept.keys():
        compile_cache.keep(memo, {key: [imports, sorted(names)] for key, (imports, names) in used.items()})
    return codes


def _read_references(content: Mapping[str, Any]) -> dict[str, fingerprint.References]:
    return {
        key: (tuple((int(level), str(name)) for level, name in imports), frozenset(map(str, names)))
        for key, (imports, names) in content.items()
    }


def code_version(step: str) -> str:
    """Return the fingerprint of the code that a step runs."""
    return step_codes()[step].digest


def _code_here(step: str) -> str:
    """Return the fingerprint of a step's code and of the versions of this machine's libraries, for a local run."""
    return digest_of([code_version(step), step_codes()[step].versions()])


def model_version(config: Config, is_here: bool) -> str:
    """Return the fingerprint of a model's code, and of the files that the code or the configuration names.

    Args:
        config: The run's configuration.
        is_here: Whether the model runs on this machine. If it does, the versions of this machine's libraries are part
            of the fingerprint. On a platform, the image contains the libraries.
    """
    code = model_code(config.training.model, config.training.model_parameters)
    return digest_of(
        [code.digest, code.versions() if is_here else {}, [_content(Location(file)) for file in config.model_files]]
    )


def _content(place: Location) -> str:
    """Return the fingerprint of the content of a file or folder.

    For files in an object store, the fingerprint is computed from the store's checksums.
    """
    if place.is_remote:
        return digest_of([_remote_files(place)])
    return _folder_content(Path(place)) if Path(place).is_dir() else digest_files({"": Path(place)})


def _remote_files(place: Location) -> list[storage.StoredFile]:
    """Return the file at a place in an object store, or all files if the place is a folder or bucket."""
    if not place.name:  # A bucket.
        return storage.list_files(place)
    same = [file for file in storage.list_files(place.parent) if f"{file.name}/".startswith(f"{place.name}/")]
    if not same:
        raise InputError(f"{place!r} in model.files does not exist. Expected a file or a folder. Check the path.")
    return same


def _folder_content(folder: Path) -> str:
    files: dict[str, Path] = {}
    for directory, folders, names in os.walk(folder, followlinks=True):
        here = Path(directory)
        folders[:] = [name for name in folders if not here.resolve().is_relative_to((here / name).resolve())]
        paths = filter(Path.is_file, map(here.joinpath, names))
        files.update({path.relative_to(folder).as_posix(): path for path in paths})
    return digest_files(files)


def data_version(listing: Listing, memo: Path) -> str:
    """Return the fingerprint of the content of a data source.

    Args:
        listing: Files of the data source.
        memo: Folder in which the fingerprint is cached until the size or modification time of a file changes.

    Raises:
        InputError: If a file changes while the content is read.
    """
    key = listing.stat_digest()
    path = memo / f"{key}.txt"
    if not path.is_file():
        digest = listing.content_digest()
        listing.require_unchanged()
        storage.write_bytes(path, digest.encode())
    return path.read_text()


def _params(params: Any) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(params).items() if name not in _WITHOUT_EFFECT}


def lineage(config: Config) -> dict[str, Any]:
    """Return facts about a run that are stored with its model in the registry.

    They are the run's name (`run`), its configuration (`config`), and the fingerprint of each step's code (`code`).
    """
    code = {step: code_version(step) for step in config.steps}
    return {"run": config.name, "config": _decisive(config), "code": code}


def _decisive(config: Config) -> dict[str, Any]:
    """Return a configuration as a mapping, without settings that do not change the result of a run.

    The fallback machines, and the time to wait for a machine, are left out.
    """
    plain = config.as_dict()
    for key in ("fallbacks", "max_wait_seconds"):
        plain.get("machine", {}).pop(key, None)
    return plain


def fingerprints(config: Config, data: str, image: str = "") -> dict[str, str]:
    """Return short digests of a run's `data`, `configuration` and `code`.

    Args:
        config: The run's configuration.
        data: `data_version` of the source, or another digest of the data.
        image: Container image of the steps. Empty if the steps run on this machine. In that case, the versions of this
            machine's libraries are part of `code`.
    """
    version = code_version if image else _code_here
    code = ({step: version(step) for step in STEPS}, model_version(config, not image), image)
    parts = {"data": data, "configuration": _decisive(config), "code": code}
    return {name: digest_of([part])[:12] for name, part in parts.items()}


def platform_fingerprints(
    config: Config, image: str, machine: str = "", environment: Mapping[str, str] | None = None
) -> dict[str, dict[str, str]]:
    """Return the value of the input `fingerprint` for each step, by the step's name.

    A platform's cache identifies a step by its inputs, image and command. Without the input `fingerprint`, the cache
    would not detect that the code behind an image's tag, or a model's files, have changed. For the training step, the
    caches of some services also ignore the machine and the image.

    Args:
        config: The run's configuration.
        image: Image of the steps.
        machine: Short name of the training step's machine.
        environment: Environment variables of the training step.
    """
    of_model = {"model": model_version(config, is_here=False)[:12]}
    of_training = {"image": image, "machine": machine}
    if environment:
        of_training["environment"] = digest_of([dict(environment)])[:12]
    more = {"preflight_training": of_model, "train_model": {**of_model, **of_training}}
    return {step: {"code": code_version(step)[:12], **more.get(step, {})} for step in STEPS}


def checkpoint_folder(config: Config, fingerprint: Mapping[str, str]) -> str:
    """Return the name of the checkpoints' folder on a platform, such as `digits/956d4455984f`.

    The name contains a digest of all facts that determine the weights and are known at compilation. The machine is left
    out, so that training on another machine continues from the same checkpoint.

    Args:
        config: Configuration of the run, with the values that are compiled into the pipeline.
        fingerprint: Fingerprint of the training step, from `platform_fingerprints`.
    """
    initial = [config.training.initial_model] if config.training.initial_model else []
    inputs = digest_of([_params(config.data), _params(config.training), *initial])[:12]
    made_of = {**{part: value for part, value in fingerprint.items() if part != "machine"}, "configuration": inputs}
    return f"{config.name}/{digest_of(made_of)[:12]}"


def step_keys(
    config: Config, data: str, champion_digest: str = "", initial_digest: str = "", receipts_digest: str = ""
) -> dict[str, str]:
    """Return the cache key of each step, by the step's name.

    Args:
        config: The run's configuration.
        data: `data_version` of the source.
        champion_digest: Digest of the registry's champion. Empty if there is none.
        initial_digest: Digest of the model whose weights training starts with. Empty if there is none.
        receipts_digest: Digest of the receipts (measurements of earlier training runs) from which preflight derives
            its intervals. Empty if there are none.

    Returns:
        The keys. Two steps with equal keys have equal outputs. A key covers the step's parameters and code, and the
        keys of the steps whose outputs the step reads. A key does not cover the version to which an alias currently
        refers. The caller checks this version before using a cached result of deploy_model.
    """
    model = model_version(config, is_here=True)
    champion = config.gate.champion
    champion_files = champion_digest
    if Location(champion).is_remote:
        champion_files = digest_of([storage.list_files(champion)])
    elif champion and Path(champion).is_dir():
        champion_files = _folder_content(Path(champion))
    beside: dict[str, tuple[Any, ...]] = {
        "create_tfrecords": (data,),
        "preflight_training": (compiler_versions(), model, *([receipts_digest] if receipts_digest else [])),
        "train_model": (model, *([initial_digest] if initial_digest else [])),
        # Preflight's key is left out: the report keeps the prediction that was made before the training.
        "evaluate_model": (champion_files, *(["prediction"] if config.preflight else [])),
    }
    keys: dict[str, str] = {}
    for name, step in STEP_TABLE.items():
        params = getattr(config, step.section)
        read = (keys[other] for other in step.reads)
        keys[name] = digest_of([_code_here(name), params and _params(params), *beside.get(name, ()), *read])
    return keys
