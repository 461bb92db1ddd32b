"""Makes what an earlier version leaves behind: a project with its workspace and registry, and what a platform was sent.

    cd CHECKOUT && .venv/bin/python …/tests/golden/earlier/make.py …/tests/golden/earlier/COMMIT.tar.xz

CHECKOUT is a clone at the commit in which `make install` was run. This file imports nothing of today's code.
`tests/e2e/test_upgrade.py` reads the archive.
"""

import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, os.getcwd())  # The checkout, whose fakes these are.

from google.cloud import aiplatform_v1 as v1
from google.protobuf import json_format
from kfp import compiler
from kfp.dsl.base_component import BaseComponent

from tests.support.fakes.execution import Simulate
from tests.support.fakes.vertex import FakeVertex

CONFIG = """\
name: small
data: {source: "sklearn:digits"}
model: small_model.py
training: {epochs: 8, batch_size_per_replica: 64, learning_rate: 0.01}
gate: {minimum: {accuracy: 0.7}}
export: {calibration_examples: 50}
"""
MODEL = '''\
import keras


def build_model(image_shape, num_classes):
    """Small layers, so that the files are small."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.Dense(num_classes, activation="softmax"),
        ]
    )
'''
STEPS = (
    *("create_tfrecords", "preflight_training", "train_model", "evaluate_model", "export_model", "deploy_model"),
    *("predict_batch", "find_drift"),
)


def compile_components(folder: Path) -> None:
    """Compile every component of the checkout by itself, also those that only some pipelines use."""
    folder.mkdir()
    names = [*(f"tpu_components.{step}.component" for step in STEPS), "tpu_pipelines.pipeline.exit_task"]
    for module in map(importlib.import_module, names):
        for name, value in vars(module).items():
            if isinstance(value, BaseComponent):
                compiler.Compiler().compile(value, str(folder / f"{name}.yaml"))


def make(project: Path) -> None:
    """Fill a folder as a user of the checkout does."""
    (project / "small.yaml").write_text(CONFIG)
    (project / "small_model.py").write_text(MODEL)
    (project / "digit.png").write_bytes(Path("tests/support/digit.png").read_bytes())
    # All steps in one pipeline. A test of the checkout keeps this file equal to what the checkout compiles.
    (project / "digits.yaml").write_bytes(Path("tests/golden/digits.yaml").read_bytes())
    compile_components(project / "components")

    def run(*words: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tpu_pipelines.cli", *words],
            cwd=project,
            env={**os.environ, **variables, "TF_CPP_MIN_LOG_LEVEL": "3"},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    run("retrain", "small.yaml", "--target", "local")
    (project / "answer.json").write_text(run("predict", "runs/small/export", "digit.png", "--json"))
    with FakeVertex(Simulate()) as fake, tempfile.TemporaryDirectory() as folder:
        platform = fake.environment(Path(folder))
        sent = ("digits", "--target", "vertex", "--set", "machine=v5e-4")  # Its model's file needs no bucket.
        run("compile", *sent, "--output", "digits-vertex.yaml", **platform)
        run("submit", *sent, "--wait", "--poll-seconds", "1", "--no-doctor", **platform)
        run("schedule", *sent, "--cron", "0 3 * * *", "--no-doctor", **platform)
        state = {
            "pipeline_jobs": [json_format.MessageToDict(v1.PipelineJob.pb(job)) for job in fake.pipeline_jobs.values()],
            "schedules": [json_format.MessageToDict(v1.Schedule.pb(each)) for each in fake.schedules.values()],
        }
    (project / "vertex.json").write_text(json.dumps(state))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        with tarfile.open(sys.argv[1], "w:xz", preset=9) as archive:
            archive.add(folder, arcname="project")
