"""Everything that is decided before an example is answered; the same for all who answer some of them."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tpu_components.core.base import fingerprint
from tpu_components.core.base.digest import digest_of
from tpu_components.core.files import storage
from tpu_components.core.sources.columns import Names, pick
from tpu_components.predict_batch.answering import Work, digest_model
from tpu_components.predict_batch.inputs import Inputs, list_inputs
from tpu_components.predict_batch.params import PredictParams
from tpu_components.serving.exported import ExportedModel, load_model


@dataclasses.dataclass(frozen=True)
class Plan:
    """The examples to answer, and the files that hold the answers.

    Attributes:
        params: Source to read, and the form to write.
        export: Folder of the model, here or in a bucket.
        model: The model.
        model_digest: Digest of it.
        inputs: The examples.
        digest: Digest of all that decides what the files hold.
        num_files: Number of files.
    """

    params: PredictParams
    export: str
    model: ExportedModel
    model_digest: str
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

    def contents(self, number: int) -> tuple[list[str], Any, list[dict[str, Any]]]:
        """Return the keys of a file's examples, their contents as `Inputs` says, and what is kept of each."""
        some = np.arange(self.examples(number).start, self.examples(number).stop)
        columns = [pick(values, some) for values in self.inputs.kept.values()]
        kept = [dict(zip(self.inputs.kept, row, strict=True)) for row in zip(*columns, strict=True)]
        return [self.inputs.keys[at] for at in some.tolist()], self.inputs.contents(some), kept or [{} for _ in some]

    def work(self, num_threads: int, export: str = "") -> Work:
        """Return what every worker is told; `export` is the place of a copy of the model."""
        return Work(
            export or self.export,
            self.model_digest,
            self.params.use_int8,
            num_threads,
            self.params.form,
            self.inputs.root,
            self.inputs.stored,
            {name: _type_of(values) for name, values in self.inputs.kept.items()},
        )


def _type_of(values: Sequence[Any]) -> str:
    """Return Arrow's name of the type that a column of values has."""
    names = {int: "int64", float: "double", bool: "bool"}
    first = "" if isinstance(values, Names) else next((value for value in values if value is not None), "")
    return names.get(type(first), "string")


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
        model_digest = digest_model(here)
    num_files = -(-len(inputs.keys) // params.part_examples)
    return Plan(params, export, model, model_digest, inputs, _digest(params, inputs, model_digest), num_files)


def _digest(params: PredictParams, inputs: Inputs, model_digest: str) -> str:
    """Return the SHA-256 of all that decides what the files hold: what was begun with another is not gone on with."""
    code = fingerprint.code_of(["tpu_components.predict_batch.answering"])
    of_params = [params.form, params.use_int8, params.part_examples]
    kept = {name: digest_of(list(values)) for name, values in inputs.kept.items()}
    return digest_of([*of_params, kept, inputs.version, model_digest, code.digest, code.versions()])
