import importlib.metadata
import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import tpu_components
import tpu_pipelines
from tpu_components.core.base.fingerprint import ROOTS, Code, Tracer, code_of, digest_files, is_installed
from tpu_components.core.models.lookup import named_files
from tpu_pipelines.config.steps import STEPS

# What a step must not miss, and what must not concern it, in the places where keys were too narrow or too wide.
_REACHED = {
    "create_tfrecords": {"sources/csv_file.py", "interface.py", "storage.py", "blocks.html.jinja", "page.css"},
    "preflight_training": {"compiler.py", "interface.py", "page.css", "page.html.jinja", "machine_catalogue.json"},
    "train_model": {
        "models/training_step/wrapping.py",
        "models/ready/__init__.py",
        "heartbeat.py",
        "registry/folder.py",
    },
    "evaluate_model": {"page.css", "page.html.jinja", "blocks.html.jinja", "metrics/estimates.py"},
    "export_model": {"verification.py", "serving/lite.py", "formats.py", "models/trained.py", "__init__.py"},
    "deploy_model": {"health_check.py", "serving/exported.py", "serving/params.py", "registry/vertex.py"},
}
_NOT_REACHED = {
    "create_tfrecords": {"machine_catalogue.json", "models/ready/__init__.py", "ready/digits_cnn.py"},
    "preflight_training": {"ready/digits_cnn.py", "registry/folder.py", "training.py"},
    "train_model": {"page.css", "page.py", "machine_catalogue.json", "ready/cifar10_cnn.py"},
    "evaluate_model": {"models/training_step/compiling.py", "machine_catalogue.json", "serving/server.py"},
    "export_model": {"page.css", "registry/folder.py", "serving/exported.py"},
    "deploy_model": {"page.css", "models/training_step/compiling.py", "page.html.jinja"},
}


def _codes(*roots):
    tracer = Tracer(roots or ROOTS)
    return {step: tracer.code_of([f"tpu_components.{step}.component"]) for step in STEPS}


@pytest.fixture(scope="module")
def codes():
    """The code of every step."""
    return _codes()


@pytest.mark.parametrize("step", STEPS)
def test_a_steps_code_is_what_it_runs_and_nothing_else(codes, step):
    own = [file for file in codes[step].files if file.split("/")[1] in (step, "core", "serving")]
    assert {name for name in _REACHED[step] if not any(file.endswith(f"/{name}") for file in own)} == set()
    assert {name for name in _NOT_REACHED[step] if any(file.endswith(f"/{name}") for file in own)} == set()
    others = [other for other in STEPS if other != step]
    assert not [name for name in codes[step].files if name.split("/")[1] in others], "no step runs another's code"


def test_a_steps_code_is_the_same_in_a_clone_and_in_a_wheel(codes, tmp_path):
    installed = tmp_path / "site-packages"
    for root in ROOTS:
        shutil.copytree(root, installed, ignore=shutil.ignore_patterns("__pycache__", "README.md"), dirs_exist_ok=True)
    assert {step: code.digest for step, code in _codes(installed).items()} == {
        step: code.digest for step, code in codes.items()
    }
    assert {name for code in codes.values() for name in code.files if not name.startswith("tpu_components/")} == set()


@pytest.mark.parametrize("package", [tpu_components, tpu_pipelines])
def test_both_packages_are_code_and_no_libraries(package):
    name = package.__name__
    code = code_of([name])
    assert code.files[f"{name}/__init__.py"] == Path(package.__file__)
    assert name not in code.libraries


def test_a_mutation_changes_the_keys_of_the_steps_that_reach_the_file_and_no_others(codes, tmp_path):
    """Of the files that the same steps reach, one is changed."""
    root = ROOTS[0]
    package = tmp_path / "tpu_components"
    shutil.copytree(root / "tpu_components", package, ignore=shutil.ignore_patterns("__pycache__"))
    copies = _codes(tmp_path)
    digests = {step: code.digest for step, code in copies.items()}
    assert digests == {step: code.digest for step, code in codes.items()}
    paths = {path.relative_to(tmp_path).as_posix(): path for path in package.rglob("*.*")}
    reaching = {name: frozenset(step for step in STEPS if name in copies[step].files) for name in paths}
    changed_files = {steps: name for name, steps in reaching.items() if steps}
    assert len(changed_files) > 8
    for steps, name in changed_files.items():
        with open(paths[name], "ab") as file:
            file.write(b"\n")
        assert {step for step in STEPS if digest_files(copies[step].files) != digests[step]} == steps, name
        paths[name].write_bytes((root / name).read_bytes())
    unreached = [name for name, steps in reaching.items() if not steps]
    assert len(unreached) > 20
    for name in unreached:
        with open(paths[name], "ab") as file:
            file.write(b"\n")
    (package / "core/models/ready/a_new_model.py").write_text("import keras\n")
    assert {step: code.digest for step, code in _codes(tmp_path).items()} == digests
    paths["tpu_components/core/pages/page.css"].write_text("")
    changed = {step for step, code in _codes(tmp_path).items() if code.digest != digests[step]}
    assert changed == {"create_tfrecords", "preflight_training", "evaluate_model"}


def test_what_a_step_imports_when_it_starts_is_all_in_its_code(codes):
    """Python itself is asked: whatever it has imported of this project must have been found without running it."""
    script = (
        "import importlib, json, os, sys\n"
        "for step in sys.argv[1:]:\n"
        "    if os.fork() == 0:\n"
        "        importlib.import_module(f'tpu_components.{step}')\n"
        "        ours = [m for n, m in sys.modules.items() if n.startswith('tpu_components')]\n"
        "        files = [getattr(m, '__file__', None) for m in ours]\n"
        "        print(json.dumps([step, files]), flush=True)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *STEPS], capture_output=True, text=True, check=True)
    imported = dict(map(json.loads, done.stdout.splitlines()))
    assert imported.keys() == set(STEPS)
    for step in STEPS:
        assert set(imported[step]) <= {str(path) for path in codes[step].files.values()}, step


def test_imports_are_found_wherever_they_stand(tmp_path):
    files = {
        "start.py": "def f():\n    import inside\nclass A:\n    from package import part as other\n",
        "inside.py": "import os, numpy.linalg\n",
        "package/__init__.py": "from package.unused import x\n",
        "package/part.py": "from . import near\nfrom .near import y\n",
        "package/near.py": "",
        "package/unused.py": "",
        "for_types.py": "",
    }
    (tmp_path / "package").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "start.py").write_text(
        files["start.py"] + "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import for_types\n"
    )
    code = code_of(["start"], (tmp_path,))
    assert code.files.keys() == {"start.py", "inside.py", "package/__init__.py", "package/part.py", "package/near.py"}
    assert code.libraries == {"numpy"}
    assert code.versions().keys() == {"numpy"}


def test_data_files_are_those_that_a_string_names(tmp_path):
    for name, text in {
        "start.py": "WEIGHTS = 'weights.h5'\nTEXT = 'other.py'\nPAGE = 'page.html.jinja'\nGONE = 'gone.json'\n",
        "page.html.jinja": "{% include 'style.css' %}",
        "style.css": "",
        "weights.h5": "",
        "unnamed.h5": "",
        "other.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    files = code_of(["start"], (tmp_path,)).files
    assert files.keys() == {"start.py", "weights.h5", "page.html.jinja", "style.css"}


@pytest.mark.parametrize(
    "expression",
    [
        "Path(__file__).parent / 'weights' / 'w.npz'",
        "Path(__file__).parent / kind / 'weights' / 'w.npz'",
        "os.path.join(os.path.dirname(__file__), 'weights', 'w.npz')",
        "Path(__file__).parent.joinpath('weights').joinpath('w.npz')",
        "Path('weights', 'w.npz')",
        "Path('weights') / '..' / 'weights' / 'w.npz'",
    ],
)
def test_a_data_file_is_found_in_the_folder_to_which_its_name_is_joined(tmp_path, expression):
    (tmp_path / "weights").mkdir()
    for name in ("weights/w.npz", "weights/other.npz"):
        (tmp_path / name).touch()
    (tmp_path / "start.py").write_text(f"NUMBER = 1 / 2 / {' / '.join(['3'] * 500)}\nWEIGHTS = {expression}\n")
    assert code_of(["start"], (tmp_path,)).files.keys() == {"start.py", "weights/w.npz"}


@pytest.mark.parametrize(
    ("test", "followed"),
    [
        ("TYPE_CHECKING", "otherwise.py"),
        ("typing.TYPE_CHECKING", "otherwise.py"),
        ("not TYPE_CHECKING", "near.py"),
        ("NOT_TYPE_CHECKING", "near.py"),
    ],
)
def test_only_what_a_type_checker_alone_reads_is_left_out(tmp_path, test, followed):
    (tmp_path / "start.py").write_text(f"if {test}:\n    import near\nelse:\n    import otherwise\n")
    for name in ("near.py", "otherwise.py"):
        (tmp_path / name).touch()
    assert followed in code_of(["start"], (tmp_path,)).files
    is_for_types = followed == "otherwise.py"
    assert ("near.py" in code_of(["start"], (tmp_path,)).files) is not is_for_types


def test_a_long_sum_is_read_to_its_end(tmp_path):
    (tmp_path / "start.py").write_text(f"SUM = {'1 + ' * 1500}1\nimport near\n")
    (tmp_path / "near.py").touch()
    assert code_of(["start"], (tmp_path,)).files.keys() == {"start.py", "near.py"}


@pytest.mark.parametrize("text", ["a" * 400, "a" * 200 + "/" + "b" * 54 + "." + "c" * 300, "a\0b", ""])
def test_a_text_that_is_no_path_names_no_file(tmp_path, text):
    (tmp_path / "start.py").write_text(f"TEXT = {text!r}\n")
    assert code_of(["start"], (tmp_path,)).files.keys() == {"start.py"}
    assert named_files({"prompt": [text]}) == {}


def test_code_that_is_no_python_counts_by_its_bytes(tmp_path):
    (tmp_path / "start.py").write_text("def (")
    before = code_of(["start"], (tmp_path,)).digest
    (tmp_path / "start.py").write_text("def [")
    assert code_of(["start"], (tmp_path,)).digest != before


@pytest.mark.parametrize("step", ["train_model", "evaluate_model", "export_model"])
def test_steps_that_run_a_model_depend_on_the_versions_of_the_frameworks(step):
    assert {"jax", "keras", "tensorflow"} <= code_of([f"tpu_components.{step}.component"]).versions().keys()


def test_libraries_beside_the_installed_project_are_none_of_its_code(tmp_path):
    installed = tmp_path / "site-packages"
    files = {"tpu_components/step.py": "import keras, tpu_components.near\n", "tpu_components/near.py": ""}
    for name, text in files.items():
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text(text)
    (installed / "keras.py").write_text("import numpy\n")
    code = code_of(["tpu_components.step"], (installed,))
    assert code.files.keys() == {"tpu_components/step.py", "tpu_components/near.py"}
    assert code.libraries == {"keras"}


def test_of_two_modules_of_a_name_the_one_counts_that_python_imports(tmp_path, monkeypatch):
    own, installed = tmp_path / "own", tmp_path / "site-packages"
    for folder in (own, installed):
        folder.mkdir()
        (folder / "of_both.py").touch()
    (own / "start.py").write_text("import of_both\n")
    monkeypatch.setattr(sys, "path", [str(installed), *sys.path])
    code = code_of(["start"], (own,))
    assert (code.files.keys(), code.libraries) == ({"start.py"}, {"of_both"})
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    code = code_of(["start"], (own,))
    assert (code.files.keys(), code.libraries) == ({"start.py", "of_both.py"}, set())


def test_a_librarys_version_is_found_whatever_its_distribution_is_called():
    versions = Code({}, frozenset({"PIL", "yaml", "markdown_it", "numpy", "is_not_installed"})).versions()
    assert versions == {
        "PIL": importlib.metadata.version("pillow"),
        "yaml": importlib.metadata.version("PyYAML"),
        "markdown_it": importlib.metadata.version("markdown-it-py"),
        "numpy": importlib.metadata.version("numpy"),
        "is_not_installed": "",
    }


def test_pythons_own_modules_are_never_the_users_code(tmp_path, monkeypatch):
    (tmp_path / "start.py").write_text("import json\nfrom wave import open\n")
    (tmp_path / "wave.py").write_text("")
    assert code_of(["start"], (tmp_path, Path(json.__file__).parents[1])).files.keys() == {"start.py"}
    linked = tmp_path / "python"
    linked.symlink_to(sysconfig.get_path("stdlib"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(linked))
    assert is_installed(Path(json.__file__))
    assert is_installed(linked)
    assert not is_installed(tmp_path)
