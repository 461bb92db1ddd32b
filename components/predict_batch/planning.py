"""Everything that is decided before an example is answered; the same for all who answer some of them."""

import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from components import fingerprint, storage
from components.predict_batch.answering import Work
from components.predict_batch.inputs import Inputs, list_inputs
from components.predict_batch.params import PredictParams
from components.serving.exported import ExportedModel, load_model


@dataclasses.dataclass(frozen=True)
class Plan:
    """The examples to answer, and the files that hold the answers.

    Attributes:
        params: Source to read, and the form to write.
        export: Folder of the model, here or in a bucket.
        model: The model.
        inputs: The examples.
        digest: Digest of all that decides what the files hold.
        num_files: Number of files.
    """

    params: PredictParams
    export: str
    model: ExportedModel
    inputs: Inputs
    digest: str
    num_files: int

    @property
    def names(self) -> list[str]:
        """Name of each file."""
        return [file_name(number, self.num_files, self.params.form) for number in range(self.num_files)]

    def examples(self, number: int) -> range:
        """Return the places of a file's examples."""
        size = self.params.part_examples
        return range(number * size, min((number + 1) * size, len(self.inputs.keys)))

    def contents(self, number: int) -> tuple[list[str], Any]:
        """Return the keys of a file's examples, and their contents as `Inputs` says."""
        some = self.examples(number)
        return [self.inputs.keys[at] for at in some], self.inputs.contents(np.arange(some.start, some.stop))

    def work(self, num_threads: int, export: str = "") -> Work:
        """Return what every worker is told; `export` is the place of a copy of the model."""
        params, inputs = self.params, self.inputs
        return Work(export or self.export, params.use_int8, num_threads, params.form, inputs.root, inputs.stored)


def file_name(number: int, num_files: int, form: str) -> str:
    """Return the name of a file of predictions.

    Example:
        >>> file_name(7, 12, "jsonl")
        'predictions-00007-of-00012.jsonl'
    """
    return f"predictions-{number:05d}-of-{num_files:05d}.{form}"


def plan_answers(params: PredictParams, export: str) -> Plan:
    """List the examples that a model is to answer, and name the files.

    Raises:
        InputError: If the model or the source cannot be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = storage.localize(export, Path(folder))
        model = load_model(here, params.use_int8)
        inputs = list_inputs(params, model)
        digest = _digest(params, inputs, here)
    return Plan(params, export, model, inputs, digest, -(-len(inputs.keys) // params.part_examples))


def _digest(params: PredictParams, inputs: Inputs, export_dir: Path) -> str:
    """Return the SHA-256 of all that decides what the files hold: what was begun with another is not gone on with."""
    code = fingerprint.code_of(["components.predict_batch.answering"])
    facts = [params.form, params.use_int8, params.part_examples, inputs.version, code.digest, code.versions()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for folder, folders, names in os.walk(export_dir):
        folders.sort()
        for name in sorted(names):
            content = hashlib.sha256(storage.read_bytes(os.path.join(folder, name))).digest()
            digest.update(os.path.relpath(os.path.join(folder, name), export_dir).encode() + b"\0" + content)
    return digest.hexdigest()
