"""Rules of the repository that no single module can keep."""

import ast
import dataclasses
import graphlib
import re
from pathlib import Path

import pytest

from components.create_tfrecords import WriteParams
from components.deploy_model import DeployParams
from components.evaluate_model import EvaluateParams
from components.export_model import ExportParams
from components.find_drift import DriftParams
from components.predict_batch import PredictParams
from components.preflight_training import PreflightParams
from components.train_model import TrainParams

ROOT = Path(__file__).parent.parent
STEPS = {
    "create_tfrecords": WriteParams,
    "preflight_training": PreflightParams,
    "train_model": TrainParams,
    "evaluate_model": EvaluateParams,
    "export_model": ExportParams,
    "deploy_model": DeployParams,
    "predict_batch": PredictParams,
    "find_drift": DriftParams,
}
USES = {
    "predict_batch": "create_tfrecords",  # It answers what that one reads: the sources are the same.
    "find_drift": "create_tfrecords",  # It measures pictures as that one does.
}
ALLOWED_TOP_LEVEL = {"components", "pipelines", "docker", "tests", "pyproject.toml", "README.md", "Makefile"}
ALLOWED_TOP_LEVEL |= {"requirements.lock", "LICENSE", "CHANGELOG.md"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def sources(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources("components"), ids=lambda path: str(path.relative_to(ROOT)))
def test_components_import_neither_pipelines_nor_other_steps_and_only_wrappers_import_kfp(path):
    step = path.relative_to(ROOT / "components").parts[0]
    for name in imports(path):
        assert name.split(".")[0] != "pipelines"
        assert name.split(".")[0] != "kfp" or path.name == "component.py"
        for other in STEPS.keys() - {step, USES.get(step)}:
            assert not name.startswith(f"components.{other}"), f"{path} imports {name}"


@pytest.mark.parametrize("path", sources("components"), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_storage_talks_to_cloud_storage_and_only_the_vertex_service_to_vertex_ai(path):
    allowed = {"object_stores.py": "google.cloud.storage", "vertex_service.py": "google.cloud"}.get(path.name)
    for name in imports(path):
        assert not name.startswith("google.cloud") or (allowed and name.startswith(allowed)), f"{path} imports {name}"


def test_a_test_file_mirrors_a_module_or_says_what_it_claims():
    for path in (ROOT / "tests").rglob("test_*.py"):
        place, name = path.relative_to(ROOT / "tests").parent, path.stem.removeprefix("test_")
        mirrored = (folder / place / module for folder in (ROOT, ROOT / "tests") for module in (f"{name}.py", name))
        is_wrapper = (ROOT / place / f"__{name}__.py").is_file()
        assert is_wrapper or any(map(Path.exists, mirrored)) or ast.get_docstring(ast.parse(path.read_text())), path


def modules():
    """Every module of the code, by its dotted name."""
    found = {}
    for path in (*sources("components"), *sources("pipelines")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported_modules(name, path, known):
    """The modules of the code that a module imports, wherever in it; of `from package import module` the module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            parts = {f"{node.module}.{alias.name}" for alias in node.names} & known.keys()
            yield from parts or {node.module}


def test_imports_go_one_way_without_a_circle():
    known = modules()
    graph = {name: {*imported_modules(name, path, known)} - {name} for name, path in known.items()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a circle of imports: {' → '.join(error.args[1])}")


LAYERS = ("pipelines.cli", "pipelines", "components")


def test_no_module_imports_one_above_it():
    known = modules()

    def layer(name):
        return next(i for i, prefix in enumerate(LAYERS) if f"{name}.".startswith(f"{prefix}."))

    for name, path in known.items():
        above = [other for other in imported_modules(name, path, known) if layer(other) < layer(name)]
        assert above == [], f"{name} imports {above}"


def test_every_folder_of_code_says_in_its_first_line_what_it_is_for():
    for folder in {path.parent for path in (*sources("components"), *sources("pipelines"))}:
        first = (folder / "__init__.py").read_text().split("\n", 1)[0]
        assert re.fullmatch(r'"""[A-Z`].{20,}\."""', first), f"{folder}: {first}"


def test_the_top_level_holds_nothing_else():
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    found = {path.name for path in ROOT.iterdir() if not any(path.match(pattern) for pattern in ignored)}
    assert {name for name in found if not name.startswith(".")} <= ALLOWED_TOP_LEVEL


@pytest.mark.parametrize(("step", "params"), STEPS.items())
def test_a_steps_readme_lists_exactly_its_parameters(step, params):
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "components" / step / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(field.name for field in dataclasses.fields(params))


def test_the_lock_names_no_index_and_pins_every_package_with_hashes():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    entries = re.findall(
        r"^([a-z0-9][^ =]*)==(\S+)((?:.*\\\n)(?: +--hash=sha256:[0-9a-f]{64}.*\n)+)", lock, re.MULTILINE
    )
    assert len(entries) == len(re.findall(r"^[a-z0-9]", lock, re.MULTILINE))
