"""Compares two data sets and writes the differences."""

from pathlib import Path

from tpu_components.core.base import progress
from tpu_components.core.drift.comparison import as_dict, find_shifts, say_verdict
from tpu_components.core.drift.version_sketches import sketch_at
from tpu_components.core.files import storage
from tpu_components.find_drift.drift_page import write_page
from tpu_components.find_drift.params import DriftParams, DriftResult

DRIFT_FILE, DRIFT_PAGE_FILE = "drift.json", "drift.html"
_STEP = "find_drift"


def find_drift(params: DriftParams, records_dir: Path, output: Path) -> DriftResult:
    """Compare records with the data of a registered version, or with other records.

    Args:
        params: Data to compare with, and confidence.
        records_dir: Folder that create_tfrecords wrote.
        output: Folder for drift.json and drift.html, written atomically.

    Raises:
        InputError: If one of the two has no statistics to compare.
    """
    storage.require_output(output, DRIFT_FILE)
    new, old = sketch_at(str(records_dir)), sketch_at(params.against)
    shifts = find_shifts(new, old, params.confidence)
    drifted = tuple(shift.figure for shift in shifts if shift.drifted)
    with storage.staged_directory(output) as staged:
        storage.write_json(staged / DRIFT_FILE, as_dict(shifts))
        write_page(new, old, shifts, staged / DRIFT_PAGE_FILE, (str(records_dir), params.against))
    progress.say(_STEP, f"{say_verdict(shifts)}; {new.num_examples:,} examples")
    return DriftResult(not drifted, drifted)
