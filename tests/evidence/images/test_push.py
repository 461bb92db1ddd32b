"""`make push` prints the name by digest of what each engine has pushed."""

import os
import subprocess

import pytest

from tests.support.cli import REPOSITORY

_DIGEST = "sha256:" + "0f" * 32
_ENGINES = {
    # A daemon knows an image by all the names under which it was ever pushed.
    "docker": f"""case "$1" in
        push) echo "pushing $2" ;;
        image) printf 'elsewhere.io/steps@sha256:00\\nhost.io:5000/project/steps@{_DIGEST}\\n\\n' ;;
    esac""",
    "podman": f'[ "$1 $2 $4" = "push --digestfile $5" ] || echo {_DIGEST} >"$3"',
    "buildah": f'[ "$1 $2 $4" = "push --digestfile $5" ] || echo {_DIGEST} >"$3"',
}


def _push(engine, image, folder):
    program = folder / engine
    program.write_text(f"#!/bin/sh\n{_ENGINES[engine]}\n")
    program.chmod(0o755)
    return subprocess.run(
        ["make", "--silent", "push", f"ENGINE={engine}", f"IMAGE={image}"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("engine", _ENGINES)
@pytest.mark.parametrize("tag", ["", ":1"])
def test_the_digest_alone_is_on_stdout(engine, tag, tmp_path):
    done = _push(engine, f"host.io:5000/project/steps{tag}", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"host.io:5000/project/steps@{_DIGEST}\n"), done.stderr


@pytest.mark.parametrize("image", ["tpu-pipelines/python:latest", "steps:1"])
def test_a_name_without_a_registry_is_refused(image, tmp_path):
    done = _push("podman", image, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot push {image}: expected a name with a registry" in done.stderr
