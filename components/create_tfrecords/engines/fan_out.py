"""Tasks written by several commands, each a range of them into a folder, and put together by another one.

PLAN/plan.json       what the parts follow from, and in how many ranges they are written
PLAN/words.npz       of texts: their words, which are read once, before any is written
PARTS/000007.npz     a part; it is there once it is whole, so that a command that was killed goes on behind it

Both lie in folders, mounted ones too, or in buckets.
"""

import dataclasses
import hashlib
import io
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tpu_components.core.base import fingerprint, progress
from tpu_components.core.base.errors import InputError
from tpu_components.core.base.partition import Share
from tpu_components.core.files import storage
from tpu_components.core.files.typed_json import JsonFile
from tpu_components.core.sources.params import WriteParams, WriteResult
from tpu_components.core.work.workers import ahead, in_threads
from tpu_components.create_tfrecords.encoders import Encoder
from tpu_components.create_tfrecords.engines.files import check_part, is_saved, load_part, save_part
from tpu_components.create_tfrecords.engines.local import LocalEngine
from tpu_components.create_tfrecords.engines.tasks import load_tasks, save_tasks
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
    with storage.staged_folder(directory) as staged:
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
        InputError: If the data, the parameters or the code have changed since, or there is no such range.
    """
    planned, prepared = _prepare_again(params, plan_dir)
    if not 0 <= number < planned.num_ranges:
        raise InputError(
            f"There is no range {number}: expected one from 0 to {planned.num_ranges - 1}, as {plan_dir} says."
        )
    numbers = _range(planned, number)
    if not storage.is_remote(directory):
        Path(directory).mkdir(parents=True, exist_ok=True)
        storage.drop_half_written(Path(directory))
    there = storage.names_in(directory)
    missing = [i for i in numbers if not (_name(i) in there and is_saved(_place(directory, i), planned.key))]
    if missing and prepared is not None:
        tasks = prepared.cut(planned.num_ranges)
        engine, some = LocalEngine(params.num_workers), [tasks[i] for i in missing]
        with (
            tempfile.TemporaryDirectory() as folder,
            progress.track(STEP, sum(len(indices) for *_, indices in some), "examples") as bar,
        ):
            for i, task, written in zip(missing, some, engine.write(prepared, some, Path(folder)), strict=True):
                save_part(_place(directory, i), planned.key, *written)
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


def write_tasks(planned: PartsPlan, prepared: Prepared, places: Mapping[int, str]) -> None:
    """Write the tasks of ranges to files, for workers that do not list the source; see `write_handed`.

    Args:
        planned: Plan of the parts.
        prepared: The data set.
        places: Number of each range, and its file.
    """
    tasks = prepared.cut(planned.num_ranges)
    for number, uri in places.items():
        save_tasks(uri, planned.key, prepared.plan.listing, {i: tasks[i][2] for i in _range(planned, number)})


def write_handed(encoder: Encoder, uri: str, key: str, directory: str) -> int:
    """Write the parts of tasks that a file holds, those that are there already kept; returns the number of all.

    Raises:
        InputError: If an image is of another shape than the others.
    """
    there, num_parts = storage.names_in(directory), 0
    with tempfile.TemporaryDirectory() as folder:
        for number, arguments in load_tasks(uri, key):
            num_parts += 1
            place = _place(directory, number)
            if _name(number) in there and is_saved(place, key):
                continue
            part = write_part(encoder, str(Path(folder) / "part"), *arguments)
            require_even(encoder, part)
            with open(part.path, "rb") as file:
                save_part(place, key, part, file.read(sum(part.sizes)))
    return num_parts


def unwritten_ranges(planned: PartsPlan, folders: Sequence[str]) -> list[int]:
    """Return the ranges of which a part is not there; `folders` are those of the ranges, in order."""
    if not planned.num_parts:
        return []
    held = in_threads(storage.names_in, folders[0], folders)
    return [
        number for number, names in enumerate(held) if any(_name(part) not in names for part in _range(planned, number))
    ]


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
        held = zip(self._folders, in_threads(storage.names_in, self._folders[0], self._folders), strict=True)
        places = {name: storage.join(place, name) for place, names in held for name in names}
        names = [_name(number) for number in range(len(tasks))]
        if missing := [number for number, name in enumerate(names) if name not in places]:
            ranges = [i for i in range(self._planned.num_ranges) if set(_range(self._planned, i)).intersection(missing)]
            raise InputError(
                f"{len(missing):,} of {len(tasks):,} parts are missing: expected the folders of all "
                f"{self._planned.num_ranges} ranges, received {len(self._folders)} without what belongs to range "
                f"{', '.join(map(str, ranges))}. Write these."
            )
        uris = [places[name] for name in names]
        parts = ahead(load_part, uris[0], uris, [self._planned.key] * len(uris))
        for (_, _, indices), (part, content) in zip(tasks, parts, strict=True):
            check_part(part, content, prepared.plan.listing, indices)
            yield part, content


def _range(planned: PartsPlan, number: int) -> range:
    """Return the numbers of a range's parts."""
    return Share(number, planned.num_ranges).within(planned.num_parts)


def _name(number: int) -> str:
    return f"{number:06d}.npz"


def _place(directory: str, number: int) -> str:
    return storage.join(directory, _name(number))


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
