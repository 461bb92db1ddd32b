"""Every command in a README exists, with its flags; the cheap ones are run as they stand there."""

import contextlib
import importlib
import importlib.util
import re
import runpy
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.cli import QUICK, READMES, REPOSITORY, steps_here, tpu_pipelines_here
from tpu_pipelines.cli.main import main

BIN = Path(sys.executable).parent
PROGRAMS = ("tpu-pipelines", "python", "tensorboard", "make", "pip", "docker", "curl")
OTHERS = ("cd", "git", "gcloud")  # Of the system.
_COMMAND = re.compile(rf"(?:\$ )?(?:\.venv/bin/)?((?:{'|'.join((*PROGRAMS, *OTHERS))}) [^\n]*)")


def in_blocks(text):
    """The commands of code blocks without a language, or in that of a shell."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language in ("", "sh", "bash", "console"):
            for line in block.splitlines():
                if command := _COMMAND.fullmatch(line.split("  #")[0].strip()):
                    yield command[1].strip()


def in_sentences(text):
    """The commands within sentences and tables."""
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for code in re.findall(r"`([^`\n]+)`", rest):
        if command := _COMMAND.fullmatch(code):
            yield command[1]


def commands(*kinds):
    found = [command for path in READMES for kind in kinds for command in kind(path.read_text())]
    return list(dict.fromkeys(found))


def _flags_and_help(words, run):
    with pytest.raises(SystemExit) as stopped:
        run()
    assert stopped.value.code == 0
    return {word.split("=")[0] for word in words if re.match(r"--\w", word)}


@pytest.mark.parametrize("command", commands(in_blocks, in_sentences))
def test_every_command_exists_with_its_flags(command, capsys, monkeypatch):
    program, *words = shlex.split(re.sub(r"[\[\]]|\\\|", " ", command))
    if program == "make":
        files = [REPOSITORY / name for name in ("docker/Dockerfile", "docker/serving.Dockerfile")]
        images = re.findall(r"^FROM \S+ AS (\S+)", "".join(path.read_text() for path in files), re.MULTILINE)
        rules = re.findall(r"^([\w%-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in [rule.replace("%", image) for rule in rules for image in images]
    elif program == "tpu-pipelines":
        flags = _flags_and_help(words, lambda: main([*(word for word in words[:1] if word[0] != "-"), "--help"]))
        assert flags <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    elif program == "python":
        *_, name = words[: words.index("-m") + 2]
        if name != "-m" and "<step>" not in name:
            is_package = importlib.util.find_spec(name).submodule_search_locations is not None
            module = importlib.import_module(f"{name}.__main__" if is_package else name)
            after = words[words.index("-m") + 2 :]
            monkeypatch.setattr("sys.argv", [name, *(word for word in after[:1] if word[0].islower()), "--help"])
            flags = _flags_and_help(words, module.main)
            assert flags <= set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    elif program == "pip":
        extras = re.search(r"(?:tpu-pipelines|\.whl)\[(\w+)\]", command)
        assert not extras or f"\n{extras[1]} = [" in (REPOSITORY / "pyproject.toml").read_text()
    else:
        assert program in (*OTHERS, *PROGRAMS)


def test_commands_are_found_in_blocks_and_in_sentences():
    text = (
        "Run `make run`, not `makeup`.\n\n```\ntpu-pipelines machines   # all\nresult 3\n```\n```yaml\nmake: x\n```\n"
    )
    assert list(in_blocks(text)) == ["tpu-pipelines machines"]
    assert list(in_sentences(text)) == ["make run"]


CHEAP = r"python -m tpu_components.create_tfrecords --|tpu-pipelines (compile|machines)"


def _here(command, folder):
    """The command with this environment's programs, and with `folder` for /tmp."""
    program, *words = shlex.split(command.replace("/tmp/", f"{folder}/"))
    return [sys.executable if program == "python" else str(BIN / program), *words]


@pytest.mark.parametrize("command", [one for one in commands(in_blocks) if re.match(CHEAP, one)])
def test_a_cheap_command_runs_as_it_stands(command, tmp_path):
    program, *words = _here(command, tmp_path)
    if program == sys.executable:
        done = subprocess.run([program, *words], capture_output=True, text=True, cwd=tmp_path, check=False)
    else:  # This process has imported KFP's compiler already.
        done = tpu_pipelines_here(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # Another process with TensorFlow: 10 s.
def test_tensorboard_shows_the_curves(tmp_path):
    """It had died for want of pkg_resources, of which newer setuptools have none."""
    (command,) = (one for one in commands(in_sentences) if one.startswith("tensorboard --logdir"))
    (tmp_path / "tensorboard").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*_here(command.replace("DIR", str(tmp_path)), "/tmp"), "--port", str(port), "--load_fast=false"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in range(900):  # A busy machine takes a minute to import TensorFlow.
                with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
                    assert "TensorBoard" in page.read().decode()
                    break
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.2)
            else:
                pytest.fail("TensorBoard did not answer.")
        finally:
            process.terminate()


@pytest.mark.slow  # Two minutes: it trains, evaluates, exports and deploys.
def test_the_steps_commands_run_as_they_stand(tmp_path):
    """Each once, in the order in which deploy_model's README has them; then those of the others."""
    order = ["create_tfrecords", "preflight_training", "train_model", "evaluate_model", "export_model", "deploy_model"]
    order += ["import_model", "predict_batch", "find_drift"]
    steps = [one for one in commands(in_blocks) if one.startswith("python -m tpu_components.")]
    steps = [one for one in steps if "images:DIR" not in one]
    for command in sorted(steps, key=lambda one: (order.index(one.split()[2].split(".")[1]), "--minimum" not in one)):
        done = subprocess.run(_here(command, tmp_path), capture_output=True, text=True, cwd=tmp_path, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"


def python_blocks(text):
    """The blocks of Python of a README, which run in order, like the cells of a notebook."""
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def bring_nothing(folder):
    return {}


def bring_export(folder):
    """An export of the digits' model."""
    done = tpu_pipelines_here("run", "digits", *QUICK, "--set", "preflight=false", "--set", "deploy=false", cwd=folder)
    assert done.returncode == 0, done.stderr
    return {}


def bring_model_and_data(folder):
    """A reader's own model, arrays, folder of pictures and configuration, under the names in the README."""
    import keras
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    for name, low in (("daisy", 0), ("rose", 128)):
        (folder / "flowers" / name).mkdir(parents=True)
        for i in range(40):
            Image.fromarray(rng.integers(low, low + 128, (16, 16, 3), np.uint8)).save(
                folder / "flowers" / name / f"{i}.png"
            )
    done = tpu_pipelines_here("init", "flowers", cwd=folder)
    assert done.returncode == 0, done.stderr
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Rescaling(1 / 16),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    digits = load_digits()
    return {"my_keras_model": model, "images": digits.images[..., None].astype(np.uint8), "labels": digits.target}


# What a reader has beside the README; such READMEs run whole pipelines, or compile.
BROUGHT = {"api": bring_model_and_data, "export_model": bring_export, "jax_steps": bring_nothing}


WITH_PYTHON = [
    pytest.param(path, marks=pytest.mark.heavy if path.parent.name in BROUGHT else (), id=path.parent.name)
    for path in READMES
    if python_blocks(path.read_text())
]


@pytest.mark.parametrize("path", WITH_PYTHON)
def test_the_python_blocks_of_a_readme_run_in_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with steps_here():
        names = BROUGHT.get(path.parent.name, bring_nothing)(tmp_path)
        for block in python_blocks(path.read_text()):
            (tmp_path / "block.py").write_text(block)
            names = runpy.run_path(str(tmp_path / "block.py"), init_globals=names)


def test_blocks_of_python_are_found():
    assert python_blocks("```python\na = 1\n```\n\n```yaml\na: 1\n```\n") == ["a = 1\n"]
