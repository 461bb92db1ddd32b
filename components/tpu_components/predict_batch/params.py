"""Parameters and result of predict_batch."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.typed_values import NotNegative, Positive, check_fields
from tpu_components.core.sources.params import BEAM, LOCAL
from tpu_components.core.sources.source_ref import SourceRef
from tpu_components.core.work.beam.options import require_names

JSONL, PARQUET = "jsonl", "parquet"
FORMS = (JSONL, PARQUET)
ENGINES = (LOCAL, BEAM)
ANSWER_FIELDS = ("key", "class", "confidence", "probabilities", "labels", "values", "reason")


@dataclasses.dataclass(frozen=True)
class PredictParams:
    """Examples to predict and files to write. Each field is an input of the component.

    Attributes:
        source: Kind and place of the examples, as in create_tfrecords, or `records:DIR` for records that
            create_tfrecords wrote. Labels are not needed: `images:DIR` and `text:DIR` take every file below the folder.
        columns: Names of a table's columns for `path`, `text` and `id`, if they differ from those of the training data,
            for example {"path": "filename"}.
        keep: Columns of a table, features of TFRecords, or fields of the JSON files in webdataset archives, to copy to
            each prediction. The `id` is always copied.
        form: Format of the files: `jsonl`, with a line for each example, or `parquet`, which needs
            `tpu-pipelines[parquet]`.
        use_int8: Use the int8 model instead of the float model.
        part_examples: Examples per file. If a process is killed, at most the file that it was writing is lost.
        num_workers: Number of processes. 0 means one per available CPU.
        engine: Where examples are predicted: `local`, by processes of this machine, or `beam`, by the workers of an
            Apache Beam runner. Both write the same bytes.
        beam_options: Options of the Beam pipeline, under Beam's names, for example `runner`, `region`,
            `worker_machine_type` and `max_num_workers`. For an option without a value, use "". Finished files are
            stored below `temp_location`, which must be in a bucket if the `runner` uses other machines.
    """

    source: str
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keep: tuple[str, ...] = ()
    form: Annotated[str, FORMS] = JSONL
    use_int8: bool = False
    part_examples: Positive = 4096
    num_workers: NotNegative = 0
    engine: Annotated[str, ENGINES] = LOCAL
    beam_options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        if taken := sorted({*self.keep} & {"id", *ANSWER_FIELDS}):
            raise InputError(
                f"keep must not contain {taken[0]!r}, because every prediction has a field with this name. Received: "
                f"keep={list(self.keep)}. Remove this name, or rename the column."
            )
        if self.form == PARQUET:
            import pyarrow  # noqa: F401 (fails now, not after everything is predicted)
        require_names(self.beam_options)

    @functools.cached_property
    def source_ref(self) -> SourceRef:
        """The kind and the place in `source`, parsed."""
        return SourceRef.parse(self.source)


@dataclasses.dataclass(frozen=True)
class PredictResult:
    """Counts of the predictions that were written.

    Attributes:
        num_examples: Number of examples in the source.
        num_predicted: Number of examples that were predicted.
        num_set_aside: Number of examples that could not be read.
        num_files: Number of prediction files.
        predicted: Number of examples by predicted class or label. Empty for a regression.
    """

    num_examples: int
    num_predicted: int
    num_set_aside: int
    num_files: int
    predicted: Mapping[str, int]
