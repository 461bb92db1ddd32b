"""A model looked at before anything is compiled, trained or paid: is it built, rebuilt, and exported as it must be?"""

import dataclasses
import json
import os
import subprocess
import sys

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.artifacts import TRAIN
from tpu_components.core.examples.interface import Interface
from tpu_components.core.models.ready import REGISTRY
from tpu_components.create_tfrecords.planning import DatasetPlan
from tpu_pipelines.checking.preflight import sample_of, written
from tpu_pipelines.config.configuration import Config

_SAMPLE_EXAMPLES = 64
_LITE = ("float", "int8")


def needs_check(config: Config) -> bool:
    """Return whether something may be wrong with a model that its training or its export would find too late.

    One of the user's own is tried before it is compiled for a machine or paid for, any model where the export must hold
    a LiteRT file; else the training itself finds it within seconds. So is what the training asks of Keras by name.
    """
    is_own = config.training.model not in REGISTRY and config.preflight is not None
    return is_own or config.training.names_more_of_keras or bool(set(_LITE) & set(config.required_formats))


def check_model_works(config: Config, plan: DatasetPlan) -> None:
    """Build a configuration's model for its data; see `check_model`.

    Raises:
        InputError: If the model cannot be built, rebuilt or exported so.
    """
    check_model(config, sample_interface(config, plan))


def check_model(config: Config, interface: Interface) -> list[str]:
    """Build a configuration's model, and make of it what the export must hold, in a process of its own.

    Returns:
        Warnings: what the model brings and training does not use.

    Raises:
        InputError: If the model cannot be built, rebuilt or exported so.
    """
    request = {
        "training": dataclasses.asdict(config.training),
        "interface": dataclasses.asdict(interface),
        "required": config.required_formats,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tpu_components.export_model.trial"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        raise InputError(
            f"The model {config.training.model!r} ended the process that tried it, with exit code {done.returncode}: "
            f"{last}. Correct the model."
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["error"]:
        raise InputError(answer["error"])
    return answer["warnings"]


def sample_interface(config: Config, plan: DatasetPlan) -> Interface:
    """Return what the model must take and give, from a few examples written as the data set will be.

    Raises:
        InputError: If they cannot be read, or do not fit together.
    """
    sample = dataclasses.replace(plan, order={TRAIN: sample_of(plan, config.data.task, _SAMPLE_EXAMPLES)})
    lenient = dataclasses.replace(config.data, max_bad_fraction=0.99)  # So few say nothing of all.
    with written(lenient, sample) as (_, manifest):
        return manifest.interface
