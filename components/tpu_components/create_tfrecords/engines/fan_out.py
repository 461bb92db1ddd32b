"""Writes records with several commands, which may run on different machines.

A part is a file with some of the encoded examples. One command plans the parts. Then several commands write one range
of the parts each. The last command merges the parts into records.

PLAN/plan.json           digest of everything that the parts depend on, and the number of ranges
PLAN/words.npz           for texts: counts of their words, which are read once, before any part is written
PARTS/whole/000007.npz   a part; `resume_state` describes the other files in PARTS

PLAN and PARTS are local or mounted folders, or folders in buckets.
"""

import dataclasses
import hashlib
import io
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.base import fingerprint, progress
from tpu_components.core.base.digest import digest_of
from tpu_components.core.base.errors import InputError, reading
from tpu_components.core.files import storage
from tpu_components.core.files.location import Location
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.files.unpacking import read_arrays
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.core.work.resume_state import ResumeState, gather, giving_up, range_of
from tpu_components.create_tfrecords.log_messages import STEP
from tpu_components.create_tfrecords.parts import Written, check_part, part_bytes, read_part
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.create_tfrecords.preparing import Prepared, Survey, prepare
from tpu_components.create_tfrecords.writer import check_target, write_prepared

_PLAN_FILE = "plan.json"
_WORDS_FILE = "words.npz"
# Parameters that change where and how fast the parts are written, but not their content.
_WITHOUT_EFFECT = ("engine", "num_workers", "beam_options")


@dataclasses.dataclass(frozen=True)
class PartsPlan(JsonFile, name=_PLAN_FILE, what="a plan of parts", step="plan_parts"):
    """Content of `plan.json`.

    Attributes:
        key: Digest of the data, the parameters and the code that the parts depend on.
        num_ranges: Number of ranges into which the parts are divided. One command writes one range.
        num_parts: Number of parts in all ranges.
    """

    key: str
    num_ranges: int
    num_parts: int

    def parts_of(self, number: int) -> range:
        """Return the numbers of the parts in a range.

        Raises:
            InputError: If the range does not exist.
        """
        return range_of(number, self.num_ranges, self.num_parts)


@dataclasses.dataclass(frozen=True)
class RangeResult:
    """A range of parts that one command has written.

    Attributes:
        first: Index of the first part of the range among all parts.
        num_parts: Number of parts in the range.
        num_kept: Number of these parts that existed already and were not damaged.
    """

    first: int
    num_parts: int
    num_kept: int


def plan_parts(params: WriteParams, directory: str, data_version: str = "") -> PartsPlan:
    """Plan the parts of a data set: list the source, assign splits, and count the words of texts.

    Args:
        params: Source to read, and how to divide it. `engine_tasks` is the number of ranges.
        directory: Folder to write. It is written completely or not at all. In a bucket, the plan is written last.
        data_version: See `write_records`.

    Raises:
        InputError: If the source cannot be used.
    """
    if Location(directory).is_path:
        storage.require_output(Path(directory), _PLAN_FILE)
    planned, prepared = prepare_parts(params, data_version)
    with storage.staged_directory(directory) as staged:
        if prepared.survey is not None:
            _save_survey(prepared.survey, staged)
        planned.save(staged)
    return planned


def prepare_parts(params: WriteParams, data_version: str = "") -> tuple[PartsPlan, Prepared]:
    """Plan the parts of a data set like `plan_parts`, but write nothing.

    Return the plan and the prepared data set.
    """
    plan = plan_dataset(params, data_version=data_version)
    prepared = prepare(plan)
    planned = PartsPlan(_key(plan), params.engine_tasks, len(prepared.cut(params.engine_tasks)))
    progress.say(STEP, f"{planned.num_parts:,} parts, to be written in {planned.num_ranges:,} ranges")
    return planned, prepared


def write_parts(params: WriteParams, plan_dir: str, directory: str, number: int) -> RangeResult:
    """Write one range of the planned parts. Existing parts are kept.

    Args:
        params: Parameters that `plan_parts` was called with.
        plan_dir: Folder that `plan_parts` wrote.
        directory: Folder to write the parts to. All ranges can share one folder in a bucket. With local folders, each
            range needs a different folder.
        number: Number of the range, from 0 to `num_ranges - 1`.

    Raises:
        InputError: If the data, the parameters or the code have changed since the plan, the range does not exist, or
            the folder is in a bucket and has parts of another data set.
    """
    planned, prepared = _prepare_again(params, plan_dir)
    numbers = planned.parts_of(number)
    parts = ResumeState(directory).begin(planned.key)
    there = parts.whole(map(part_name, numbers))
    missing = [i for i in numbers if part_name(i) not in there]
    tasks = prepared.cut(planned.num_ranges)
    some = [tasks[i] for i in missing]
    with (
        tempfile.TemporaryDirectory() as folder,
        progress.track(STEP, sum(len(task.examples) for task in some), "examples") as bar,
    ):
        for i, (task, part) in zip(missing, prepared.write(some, Path(folder)), strict=True):
            parts.finish(part_name(i), part_bytes(part), {})
            bar.update(len(task.examples))
    with giving_up(parts):
        prepared.plan.listing.require_unchanged()
    return RangeResult(numbers.start, len(numbers), len(numbers) - len(missing))


def merge_parts(params: WriteParams, plan_dir: str, folders: Sequence[str], directory: Path) -> WriteResult:
    """Merge the parts of all ranges into records. The files are the same as if one machine had written them.

    Args:
        params: Parameters that `plan_parts` and `write_parts` were called with.
        plan_dir: Folder that `plan_parts` wrote.
        folders: Folders that `write_parts` wrote, in any order.
        directory: Folder to write. It is written completely or not at all.

    Raises:
        InputError: If a part is missing or belongs to another data set, and in all cases that `write_records` lists.
    """
    return merge(*_prepare_again(params, plan_dir), folders, directory)


def merge(planned: PartsPlan, prepared: Prepared, folders: Sequence[str], directory: Path) -> WriteResult:
    """Merge the parts of all ranges into records like `merge_parts`, for a data set that is already prepared."""
    tasks = prepared.cut(planned.num_ranges)

    def read_parts() -> Written:
        names = [part_name(number) for number in range(len(tasks))]
        pieces = gather(list(map(ResumeState, folders)), planned.key, names, planned.num_ranges)
        for task, piece in zip(tasks, pieces, strict=True):
            part = read_part(piece.uri, piece.content)
            check_part(part, prepared.plan.listing, task.examples)
            yield task, part

    check_target(directory, prepared.plan.params.source)
    return write_prepared(prepared, directory, read_parts())


def part_name(number: int) -> str:
    """Return the file name of a part, such as `000007.npz`."""
    return f"{number:06d}.npz"


def _key(plan: DatasetPlan) -> str:
    """Return the digest of everything that the content of a part depends on."""
    code = fingerprint.code_of([__name__])
    values = {name: value for name, value in dataclasses.asdict(plan.params).items() if name not in _WITHOUT_EFFECT}
    order = {name: hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest() for name, indices in plan.order.items()}
    return digest_of([values, order, plan.listing.stat_digest(), code.digest, code.versions()])


def _prepare_again(params: WriteParams, plan_dir: str) -> tuple[PartsPlan, Prepared]:
    """Load a plan of parts, and prepare its data set again.

    Raises:
        InputError: If the data, the parameters or the code have changed since the plan was written.
    """
    with tempfile.TemporaryDirectory() as folder:
        here = storage.localize(plan_dir, Path(folder))
        planned = PartsPlan.load(here)
        plan = plan_dataset(params)
        if (key := _key(plan)) != planned.key:
            raise InputError(
                f"The data, the parameters or the code have changed since {plan_dir} was written: expected digest "
                f"{planned.key[:12]}, received {key[:12]}. Run plan again, then write all parts again."
            )
        words = here / _WORDS_FILE
        return planned, prepare(plan, _load_survey(words) if words.is_file() else None)


def _save_survey(survey: Survey, directory: Path) -> None:
    words = sorted(survey.counts)
    file = io.BytesIO()
    known = np.frombuffer(b"\n".join(words), np.uint8)  # Words contain no line breaks.
    np.savez(file, of_texts=survey.words, counts=np.array([survey.counts[word] for word in words], int), known=known)
    storage.write_bytes(directory / _WORDS_FILE, file.getvalue())


def _load_survey(path: Path) -> Survey:
    with reading(path, "the words that the step has counted", "Remove the folder, and run the step again."):
        stored = read_arrays(path, is_own=True)
        words = stored["known"].tobytes().split(b"\n")
        return Survey(stored["of_texts"], Counter(dict(zip(words, stored["counts"].tolist(), strict=True))))
