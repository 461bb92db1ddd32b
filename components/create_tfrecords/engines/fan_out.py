"""Tasks written by several commands, each a range of them into a folder, and put together by another one.

PLAN/plan.json           what the parts follow from, and in how many ranges they are written
PLAN/words.npz           of texts: their words, which are read once, before any is written
PARTS/whole/000007.npz   a part; PARTS is a folder of finished pieces, see `resume_state`

Both lie in folders, mounted ones too, or in buckets.
"""

import dataclasses
import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.base import fingerprint, progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.files import storage
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.core.sources.tasks import load_tasks
from tpu_components.core.work.resume_state import ResumeState, gather, range_of
from tpu_components.create_tfrecords.encoders import Encoder
from tpu_components.create_tfrecords.engines.files import check_part, part_bytes, read_part
from tpu_components.create_tfrecords.engines.local import LocalEngine
from tpu_components.create_tfrecords.log_messages import STEP
from tpu_components.create_tfrecords.parts import Task, Written, write_part
from tpu_components.create_tfrecords.planning import DatasetPlan, plan_dataset
from tpu_components.create_tfrecords.preparing import Prepared, prepare, require_even
from tpu_components.create_tfrecords.words import Survey
from tpu_components.create_tfrecords.writer import write_records

_PLAN_FILE = "plan.json"
_WORDS_FILE = "words.npz"
# What decides where and how fast the parts are written, never what they hold.
_WITHOUT_EFFECT = ("engine", "num_workers", "beam_options")


@dataclasses.dataclass(frozen=True)
class PartsPlan(JsonFile, name=_PLAN_FILE, what="a plan of parts", step="plan_parts"):
    """`plan.json`.

    Attributes:
        key: Digest of the data, the parameters and the code that the parts follow from.
        num_ranges: Number of commands among which they are divided.
        num_parts: Number of parts; 0 of a corpus, which is written where the others are put together.
    """

    key: str
    num_ranges: int
    num_parts: int

    def parts_of(self, number: int) -> range:
        """Return the numbers of a range's parts.

        Raises:
            InputError: If there is no such range.
        """
        return range_of(number, self.num_ranges, self.num_parts)


@dataclasses.dataclass(frozen=True)
class RangeResult:
    """A range of parts that has been written.

    Attributes:
        first: Number of its first part.
        num_parts: Number of its parts.
        num_kept: Number of those that were there already, and whole.
    """

    first: int
    num_parts: int
    num_kept: int


def plan_parts(params: WriteParams, directory: str) -> PartsPlan:
    """Plan a data set, and read what has to be known of all examples before any of them is written.

    Args:
        params: Source to read, and how to divide it; `engine_tasks` is the number of ranges.
        directory: Folder to write; appears whole or not at all, in a bucket with the plan as its last file.

    Raises:
        InputError: If the source cannot be used.
    """
    return plan_and_prepare(params, directory)[0]


def plan_and_prepare(params: WriteParams, directory: str) -> tuple[PartsPlan, Prepared | None]:
    """Plan as `plan_parts` does; returns the prepared data set too, None for a corpus."""
    if not storage.is_remote(directory):
        storage.require_output(Path(directory), _PLAN_FILE)
    plan, num_parts, prepared = plan_dataset(params), 0, None
    with storage.staged_directory(directory) as staged:
        if plan.listing.corpus is None:
            prepared = prepare(params, plan)
            num_parts = len(prepared.cut(params.engine_tasks))
            if prepared.survey is not None:
                _save_survey(prepared.survey, staged)
        planned = PartsPlan(_key(params, plan), params.engine_tasks, num_parts)
        planned.save(staged)
    progress.say(STEP, f"{planned.num_parts:,} parts, to be written in {planned.num_ranges:,} ranges")
    return planned, prepared


def write_parts(params: WriteParams, plan_dir: str, directory: str, number: int) -> RangeResult:
    """Write one range of the parts that are planned; those that are there already are kept.

    Args:
        params: Parameters by which `plan_parts` has planned.
        plan_dir: Folder that it wrote.
        directory: Folder to write the parts to, one after the other; one on a disk is this range's alone.
        number: Number of the range, from 0.

    Raises:
        InputError: If the data, the parameters or the code have changed since, there is no such range, or the folder,
            in a bucket, has parts of something else.
    """
    planned, prepared = _prepare_again(params, plan_dir)
    numbers, parts = planned.parts_of(number), ResumeState(directory)
    parts.begin(planned.key)
    there = parts.whole(map(part_name, numbers))
    missing = [i for i in numbers if part_name(i) not in there]
    if missing and prepared is not None:
        tasks = prepared.cut(planned.num_ranges)
        engine, some = LocalEngine(params.num_workers), [tasks[i] for i in missing]
        with (
            tempfile.TemporaryDirectory() as folder,
            progress.track(STEP, sum(len(indices) for *_, indices in some), "examples") as bar,
        ):
            for i, task, written in zip(missing, some, engine.write(prepared, some, Path(folder)), strict=True):
                parts.finish(part_name(i), part_bytes(*written), {})
                bar.update(len(task[2]))
    return RangeResult(numbers.start, len(numbers), len(numbers) - len(missing))


def merge_parts(params: WriteParams, plan_dir: str, folders: Sequence[str], directory: Path) -> WriteResult:
    """Put the parts of all ranges together: the same bytes as one machine alone writes.

    Args:
        params: Parameters by which they were planned and written.
        plan_dir: Folder that `plan_parts` wrote.
        folders: Folders that `write_parts` wrote, in any order.
        directory: Folder to write; appears whole or not at all.

    Raises:
        InputError: If a part is missing, or follows from something else; and as `write_records` says.
    """
    return merge(params, *_prepare_again(params, plan_dir), folders, directory)


def merge(
    params: WriteParams, planned: PartsPlan, prepared: Prepared | None, folders: Sequence[str], directory: Path
) -> WriteResult:
    """Put the parts of a data set that is prepared together, as `merge_parts` does."""
    if prepared is None:
        return write_records(params, directory)
    return write_records(params, directory, prepared=prepared, engine=FanOutEngine(planned, folders))


def write_handed(encoder: Encoder, uri: str, key: str, parts: ResumeState) -> int:
    """Write the parts of tasks that a file holds, those that are there already kept; returns the number of all.

    Raises:
        InputError: If an image is of another shape than the others.
    """
    tasks = dict(load_tasks(uri, key))
    there = parts.whole(map(part_name, tasks))
    with tempfile.TemporaryDirectory() as folder:
        for number, arguments in tasks.items():
            if part_name(number) in there:
                continue
            part = write_part(encoder, str(Path(folder) / "part"), *arguments)
            require_even(encoder, part)
            with open(part.path, "rb") as file:
                parts.finish(part_name(number), part_bytes(part, file.read(sum(part.sizes))), {})
    return len(tasks)


class FanOutEngine:
    """Parts that other commands have written.

    Args:
        planned: Plan of the parts.
        folders: Folders with them.
    """

    def __init__(self, planned: PartsPlan, folders: Sequence[str]) -> None:
        self._planned, self._folders = planned, folders

    def cut(self, prepared: Prepared) -> list[Task]:
        """Cut a data set as it was when the parts were planned."""
        return prepared.cut(self._planned.num_ranges)

    def write(self, prepared: Prepared, tasks: Sequence[Task], folder: Path) -> Written:
        """Yield what has become of every task, as `Engine` says."""
        folders = [ResumeState(folder) for folder in self._folders]
        names = [part_name(number) for number in range(len(tasks))]
        pieces = gather(folders, self._planned.key, names, self._planned.num_ranges)
        for (_, _, indices), piece in zip(tasks, pieces, strict=True):
            part, content = read_part(piece.uri, piece.content)
            check_part(part, content, prepared.plan.listing, indices)
            yield part, content


def part_name(number: int) -> str:
    """Return the name of a part's file."""
    return f"{number:06d}.npz"


def _key(params: WriteParams, plan: DatasetPlan) -> str:
    """Return the digest of everything that a part follows from."""
    code = fingerprint.code_of([__name__])
    values = {name: value for name, value in dataclasses.asdict(params).items() if name not in _WITHOUT_EFFECT}
    facts = [values, plan.listing.stat_digest(), code.digest, code.versions()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, indices in plan.order.items():
        digest.update(name.encode() + np.ascontiguousarray(indices, "<i8").tobytes())
    return digest.hexdigest()


def _prepare_again(params: WriteParams, plan_dir: str) -> tuple[PartsPlan, Prepared | None]:
    """Return a plan of parts, and the data set that it is of; None for a corpus."""
    with tempfile.TemporaryDirectory() as folder:
        here = storage.localize(plan_dir, Path(folder))
        planned, plan = PartsPlan.load(here), plan_dataset(params)
        if (key := _key(params, plan)) != planned.key:
            raise InputError(
                f"The data, the parameters or the code have changed since {plan_dir} was written: expected "
                f"{planned.key[:12]}, received {key[:12]}. Plan again, and write all parts again."
            )
        if plan.listing.corpus is not None:
            return planned, None
        words = here / _WORDS_FILE
        return planned, prepare(params, plan, _load_survey(words) if words.is_file() else None)


def _save_survey(survey: Survey, directory: Path) -> None:
    words = sorted(survey.counts)
    file = io.BytesIO()
    np.savez(
        file,
        of_texts=survey.words,
        counts=np.array([survey.counts[word] for word in words], np.int64),
        lengths=np.array([len(word) for word in words], np.int64),
        known=np.frombuffer(b"".join(words), np.uint8),
    )
    storage.write_bytes(directory / _WORDS_FILE, file.getvalue())


def _load_survey(path: Path) -> Survey:
    with np.load(path, allow_pickle=False) as stored:
        ends = np.cumsum(stored["lengths"]).tolist()
        known = stored["known"].tobytes()
        words = [known[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        counts = Counter(dict(zip(words, stored["counts"].tolist(), strict=True)))
        return Survey(stored["of_texts"], counts)
