"""Checks labelled examples of any source and writes them as sharded TFRecord files."""

from tpu_components.core.sources.kinds import source_version
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.create_tfrecords.writer import write_records

__all__ = [
    "DatasetPlan",
    "WriteParams",
    "WriteResult",
    "plan_dataset",
    "source_version",
    "write_records",
]
