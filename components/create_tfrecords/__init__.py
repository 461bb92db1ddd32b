"""Labelled examples of any source as checked, sharded TFRecord files."""

from components.create_tfrecords.params import WriteParams, WriteResult
from components.create_tfrecords.planning import DatasetPlan, plan_dataset
from components.create_tfrecords.sources.kinds import source_version
from components.create_tfrecords.writer import write_records

__all__ = [
    "DatasetPlan",
    "WriteParams",
    "WriteResult",
    "plan_dataset",
    "source_version",
    "write_records",
]
