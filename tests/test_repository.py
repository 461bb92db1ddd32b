"""Rules of the repository that no single module can keep."""

import ast
import functools
import graphlib
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.cli import COMPONENTS, PIPELINES
from tpu_components.core.base.extras import EXTRAS
from tpu_components.create_tfrecords import WriteParams
from tpu_components.deploy_model import DeployParams
from tpu_components.evaluate_model import EvaluateParams
from tpu_components.export_model import ExportParams
from tpu_components.find_drift import DriftParams
from tpu_components.import_model import ImportParams
from tpu_components.predict_batch import PredictParams
from tpu_components.preflight_training import PreflightParams
from tpu_components.train_model import TrainParams
from tpu_pipelines.platforms.platform import PLATFORMS

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
    "import_model": ImportParams,
}
PACKAGES = (COMPONENTS, PIPELINES)
SOURCES = COMPONENTS / "core" / "sources"  # A file for each kind of source.
ALLOWED_TOP_LEVEL = {"components", "pipelines", "docker", "tests", "pyproject.toml", "README.md", "Makefile"}
ALLOWED_TOP_LEVEL |= {"requirements.lock", "LICENSE", "CHANGELOG.md"}


@functools.cache
def text_of(path):
    """The text of a file, which several tests search."""
    return path.read_text()


@functools.cache
def nodes_of(path):
    """All nodes of a module's syntax tree, the module first. Several tests look through them."""
    return tuple(ast.walk(ast.parse(text_of(path))))


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    """The trees are large: they are dropped after this file's tests."""
    yield
    nodes_of.cache_clear()


@functools.cache
def imports(path):
    return tuple(named_imports(path))


def named_imports(path):
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@functools.cache
def sources(folder):
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources("components"), ids=lambda path: str(path.relative_to(ROOT)))
def test_components_import_neither_pipelines_nor_other_steps_and_only_wrappers_import_kfp(path):
    step = path.relative_to(COMPONENTS).parts[0]
    collects = step == "kfp"  # The components in one package, for pipelines of other people.
    for name in imports(path):
        assert name.split(".")[0] != "tpu_pipelines"
        assert name.split(".")[0] != "kfp" or path.name == "component.py" or collects
        for other in () if collects else STEPS.keys() - {step}:
            assert not f"{name}.".startswith(f"tpu_components.{other}."), f"{path} imports {name}"


@pytest.mark.parametrize("path", sources("components"), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_storage_talks_to_cloud_storage_and_only_the_vertex_service_to_vertex_ai(path):
    allowed = {"object_stores.py": "google.cloud.storage", "vertex_clients.py": "google.cloud"}.get(path.name)
    for name in imports(path):
        assert not name.startswith("google.cloud") or (allowed and name.startswith(allowed)), f"{path} imports {name}"


def mirrored_folder(place):
    """The folder of the repository whose modules a folder of tests, such as components/core, mirrors."""
    folder, *rest = place.parts or ("",)
    package = next((package for package in PACKAGES if package.parent.name == folder), ROOT / folder)
    return package.joinpath(*rest)


def test_a_test_file_mirrors_a_module_or_says_what_it_claims():
    for path in (ROOT / "tests").rglob("test_*.py"):
        place, name = path.relative_to(ROOT / "tests").parent, path.stem.removeprefix("test_")
        code = mirrored_folder(place)
        mirrored = (folder / module for folder in (code, ROOT / "tests" / place) for module in (f"{name}.py", name))
        is_wrapper = (code / f"__{name}__.py").is_file()
        assert is_wrapper or any(map(Path.exists, mirrored)) or ast.get_docstring(nodes_of(path)[0]), path


@functools.cache
def modules():
    """Every module of the code, by its dotted name."""
    found = {}
    for path in (*sources("components"), *sources("pipelines")):
        _, *name = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(name).removesuffix(".__init__")] = path
    return found


def test_a_module_is_imported_by_the_path_below_components_or_pipelines():
    """In a clone, too, by what Python itself does: no second name, no link."""
    for name, path in modules().items():
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin == str(path)


def test_what_a_file_says_is_what_runs():
    """No text is executed or planted as the source of a function, and Python's own finders find every module."""
    pattern = re.compile(r"\bexec\s*\(|\bline[_]?cache\b|\b(meta|path)_(path|hooks)\b")
    assert pattern.search("sys." + "_".join(("meta", "path")))
    for path in (*sources("components"), *sources("pipelines"), *sources("tests")):
        assert not pattern.search(text_of(path)), path


def run_at_import(node):
    """The nodes of a syntax tree that an import runs: all but the bodies of functions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*child.decorator_list, child.args]
        else:
            parts = [child.args] if isinstance(child, ast.Lambda) else [child]
        for part in parts:
            yield from run_at_import(part)


def test_an_import_reads_no_environment_variable():
    for name, path in modules().items():
        for node in run_at_import(nodes_of(path)[0]):
            assert getattr(node, "attr", "") not in ("environ", "getenv"), f"{name}, line {node.lineno}"


def imported_modules(name, path, known):
    """The modules of the code that a module imports, wherever in it; of `from package import module` the module."""
    for node in nodes_of(path):
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


@functools.cache
def rooms():
    """The rooms in the order of imports, as the READMEs list them, and the steps and the server between."""
    core, above = (
        re.findall(r"^\| \[`([\w/]+)`\]", (ROOT / folder / "README.md").read_text(), re.MULTILINE)
        for folder in ("components", "pipelines")
    )
    floors = [f"tpu_components.{room.replace('/', '.')}" for room in core]
    return [*floors, "tpu_components", *(f"tpu_pipelines.{room}" for room in above), "tpu_pipelines"]


def test_a_room_imports_only_from_rooms_that_the_readme_lists_above_it():
    known, order = modules(), rooms()

    def floor(name):
        return order.index(max((room for room in order if f"{name}.".startswith(f"{room}.")), key=len))

    for name, path in known.items():
        if name in ("tpu_components.core", "tpu_pipelines"):
            continue
        above = [other for other in imported_modules(name, path, known) if floor(other) > floor(name)]
        assert above == [], f"{name} imports {above}"


def test_every_folder_of_code_is_a_room_that_the_readme_lists():
    parents = {path.parent for path in (*sources(COMPONENTS / "core"), *sources("pipelines"))}
    folders = {".".join(folder.relative_to(ROOT).parts[1:4]) for folder in parents}
    roots = {"tpu_components", "tpu_components.core", "tpu_pipelines"}
    roots.add("tpu_pipelines.examples")  # They import the packages as a user does.
    inside = tuple(f"{room}." for room in rooms() if room not in roots)
    assert {name for name in folders - roots if not f"{name}.".startswith(inside)} == set()


def named_platforms(path):
    """The lines of a module that name a platform: a string of nothing but names, or an import from a platform's folder.

    "vertex" and "vertex, kubeflow" name platforms; "submit --target vertex" is an example for a reader.
    """
    names = "|".join(PLATFORMS)
    folder = re.compile(rf"tpu_pipelines\.platforms\.({names})\b")
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(rf"\W*({names})(\W+({names}))*\W*", node.value):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and folder.match(node.module or ""):
            yield node.lineno


def test_only_its_folder_and_the_catalogue_of_machines_name_a_platform():
    """Others ask the object. Extras of pip, and a model registry in a configuration, have the same names.

    The signature of a component repeats the defaults of its Params.
    """
    allowed = {COMPONENTS / "core" / "base" / "extras.py", COMPONENTS / "deploy_model" / "params.py"}
    folders = (PIPELINES / "platforms", COMPONENTS / "core" / "machines")
    for path in (*sources("components"), *sources("pipelines")):
        if path.name == "component.py" or path in allowed or any(map(path.is_relative_to, folders)):
            continue
        assert list(named_platforms(path)) == [], path
    shared = [path for path in (PIPELINES / "platforms").glob("*.py") if path.name != "platform.py"]
    assert [path for path in shared if list(named_platforms(path))] == []


def inspected_schemes(path):
    """The lines of a module that look for the scheme of an object store in a text, or keep one to look for."""
    schemes = ("gs://", "s3://", "hf://")
    methods = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"}
    methods |= {"find", "index", "replace", "count", "match", "fullmatch", "search"}
    for node in nodes_of(path):
        is_kept = isinstance(node, ast.Assign)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            values = node.args
        elif isinstance(node, ast.Compare):
            values = [node.left, *node.comparators]
        else:
            values = [node.value] if is_kept else []
        constants = [part for value in values for part in (value, *getattr(value, "elts", ()))]
        texts = [part.value for part in constants if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if any(text in (*schemes, "://") or (text.startswith(schemes) and not is_kept) for text in texts):
            yield node.lineno


def test_only_the_module_of_locations_reads_the_scheme_of_a_text(tmp_path):
    """Others ask the `Location`. An address of HTTP is none."""
    asked = [
        "x.startswith('gs://b')",
        "x.startswith(('a', 's3://'))",
        "'hf://' in x",
        "x.partition('://')",
        "G = 'gs://'",
    ]
    fine = ["x.startswith('https://')", "raise ValueError('use gs://BUCKET')", "x = 'gs://bucket'", "f'gs://{x}'"]
    for lines, number in ((asked, len(asked)), (fine, 0)):
        (module := tmp_path / f"{number}.py").write_text("\n".join(lines))
        assert len(list(inspected_schemes(module))) == number
    allowed = {
        COMPONENTS / "core" / "files" / name for name in ("location.py", "object_stores.py", "vertex_clients.py")
    }
    for path in (*sources("components"), *sources("pipelines")):
        assert path in allowed or list(inspected_schemes(path)) == [], path


def test_the_roots_hold_no_loose_modules():
    loose = [path for package in PACKAGES for folder in (package, package.parent) for path in folder.glob("*.py")]
    assert loose == [package / "__init__.py" for package in PACKAGES]


def test_no_folder_has_more_than_seventeen_modules():
    for folder in {path.parent for path in (*sources("components"), *sources("pipelines"))} - {SOURCES}:
        assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= 17, folder


@pytest.mark.parametrize("workflow", [".github/workflows/pull-request.yml", ".ci/examples/gitlab-ci.yml"])
def test_the_preflight_of_the_branch_that_is_merged_into_runs_the_code_of_that_branch(workflow, tmp_path):
    """In the environment of the branch to merge, whose own packages are installed there."""
    base = tmp_path / "base"
    for package in PACKAGES:
        (base / package.parent.name).mkdir(parents=True)
        (base / package.relative_to(ROOT)).symlink_to(package)
    pattern = r"cd base && (PYTHONPATH=\S+) \.\./\.venv/bin/python -m tpu_pipelines"
    (variable,) = re.findall(pattern, (ROOT / workflow).read_text())
    script = "import tpu_components, tpu_pipelines; print(tpu_components.__file__, tpu_pipelines.__file__)"
    words = ["sh", "-c", f'cd base && {variable} "$@"', "sh", sys.executable, "-c", script]
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [f"{base / package.relative_to(ROOT)}/__init__.py" for package in PACKAGES]


def test_a_wheel_holds_the_two_packages_with_every_file_and_names_every_extra(tmp_path):
    for name in ("components", "pipelines", "pyproject.toml", "README.md", "LICENSE"):
        path = ROOT / name
        copy = shutil.copytree if path.is_dir() else shutil.copyfile
        copy(path, tmp_path / name)
    script = f"import setuptools.build_meta as backend; backend.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
        (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA"))
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PACKAGES],
        cwd=ROOT,
        text=True,
    ).split()
    assert sorted(names) == sorted(name.partition("/")[2] for name in listed if (ROOT / name).exists())
    extras = re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE)
    assert set(EXTRAS.values()) <= set(extras)


def test_every_folder_of_code_says_in_its_first_line_what_it_is_for():
    for folder in {path.parent for path in (*sources("components"), *sources("pipelines"))}:
        first = (folder / "__init__.py").read_text().split("\n", 1)[0]
        assert re.fullmatch(r'"""[A-Z`].{20,}\."""', first), f"{folder}: {first}"


def test_the_top_level_holds_nothing_else():
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    found = {path.name for path in ROOT.iterdir() if not any(path.match(pattern) for pattern in ignored)}
    assert {name for name in found if not name.startswith(".")} <= ALLOWED_TOP_LEVEL


def test_the_lock_names_no_index_and_pins_every_package_with_hashes():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    entries = re.findall(
        r"^([a-z0-9][^ =]*)==(\S+)((?:.*\\\n)(?: +--hash=sha256:[0-9a-f]{64}.*\n)+)", lock, re.MULTILINE
    )
    assert len(entries) == len(re.findall(r"^[a-z0-9]", lock, re.MULTILINE))


def test_make_help_says_what_every_target_does():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = {line.split()[0] for line in listed.splitlines() if len(line.split()) > 2}
    assert set(targets) - described == set()
