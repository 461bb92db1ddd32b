"""Runs with the same name: the latest run in a fixed folder, and earlier runs in numbered folders next to it.

    WORKSPACE/digits/             the latest run
    WORKSPACE/digits.runs/0001/   the first run; then 0002, …
    WORKSPACE/digits.runs/latest  a link to the latest

An earlier run shares its files with the cache by hard links, and takes no additional space until the cache is cleaned.
"""

import collections
import contextlib
import dataclasses
import datetime
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tpu_components.core.base.errors import InputError
from tpu_components.core.base.states import LOOKS, State
from tpu_components.core.base.terminal import in_one_line
from tpu_components.core.examples.artifacts import PREFLIGHT_REPORT_FILE, REPORT_FILE, learning_rates
from tpu_components.core.files import storage, typed_json
from tpu_components.core.pages import page
from tpu_components.core.pages.blocks import Block, Cell, Sentences, Table
from tpu_components.core.pages.scores import score_and_loss
from tpu_pipelines.config.steps import STEPS
from tpu_pipelines.runs.summary import Summary, as_trained
from tpu_pipelines.runs.workspace import HISTORY_SUFFIX, LOG_FILE, SUMMARY_FILE, history_dir

KEPT = 10  # Number of earlier runs with the same name that are kept.
LATEST = "latest"
_NUMBER = r"\d{4,}"
_INDEX_FILE, _COMPARISON_FILE = "index.html", "comparison.html"
_PAGES = {"report": f"evaluation/{REPORT_FILE}", "preflight": f"preflight/{PREFLIGHT_REPORT_FILE}"}
_COLUMNS = {"run": "<", "number": "<", "ended, UTC": "<", "result": "<", "score": ">", "loss": ">", "MiB": ">"}


def set_aside(run_dir: Path) -> None:
    """Move a finished run to a numbered folder, so that the next run can begin.

    At most `KEPT` earlier runs with the same name are kept. The others are deleted; see `find_surplus`.

    A run that was killed has no summary and is not moved.
    """
    if (summary := Summary.find(run_dir)) is None:
        return
    directory = history_dir(run_dir)
    directory.mkdir(exist_ok=True)
    place = directory / f"{max([0, *map(int, _numbers(directory))]) + 1:04d}"
    raw = typed_json.decode((run_dir / SUMMARY_FILE).read_bytes())  # Keeps fields of newer versions.
    artifacts = {
        name: str(place / Path(path).relative_to(run_dir)) if Path(path).is_relative_to(run_dir) else path
        for name, path in summary.artifacts.items()
    }
    moved = {"ended": _ended(summary, run_dir), "artifacts": artifacts}
    storage.write_json(run_dir / SUMMARY_FILE, raw | moved)
    os.rename(run_dir, place)
    with contextlib.suppress(OSError):  # The link exists, or the file system has no links.
        (directory / LATEST).symlink_to(Path("..") / run_dir.name)
    delete_earlier(run_dir, KEPT)


def _ended(summary: Summary, run_dir: Path) -> str:
    written = datetime.datetime.fromtimestamp((run_dir / SUMMARY_FILE).stat().st_mtime, datetime.UTC)
    return summary.ended or written.isoformat(timespec="seconds")


def find_surplus(run_dir: Path, keep: int) -> list[Path]:
    """Return the folders of the earlier runs that must be deleted to leave `keep` earlier runs.

    Failed runs are deleted first, then the oldest runs. The newest of the earlier runs is deleted last, even if it has
    failed.

    If the latest run has failed, the newest earlier run that has not failed is always kept.
    """
    directory = history_dir(run_dir)
    places = [directory / number for number in _numbers(directory)]
    # A failed run must not cause the deletion of the last run that has trained. The newest run is deleted last, because
    # the next run's number is one higher.
    good = [place for place in places if not _has_failed(place)]
    kept = good[-1:] if _has_failed(run_dir) else []
    places = [*sorted(places[:-1], key=lambda place: place in good), *places[-1:]]
    return [place for place in places[: max(0, len(places) - keep)] if place not in kept]


def delete_earlier(run_dir: Path, keep: int) -> list[Path]:
    """Delete the runs from `find_surplus`, and remains of interrupted deletions. Return the runs' former folders."""
    directory = history_dir(run_dir)
    for half in directory.glob(".*.old"):
        shutil.rmtree(half, ignore_errors=True)
    dropped = find_surplus(run_dir, keep)
    for place in dropped:
        _delete(place, directory)
    return dropped


def _delete(place: Path, directory: Path) -> None:
    old = directory / f".{place.name}.old"
    os.rename(place, old)  # A run is deleted completely or not at all.
    shutil.rmtree(old, ignore_errors=True)


def delete_one(run_dir: Path, number: str) -> Path:
    """Delete the run with a number, or the latest run if `number` is `LATEST`. Return its former folder."""
    directory = history_dir(run_dir)
    place = run_dir if number == LATEST else directory / number
    directory.mkdir(exist_ok=True)
    _delete(place, directory)
    if number == LATEST:
        (directory / LATEST).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # The folder still contains other runs.
        directory.rmdir()
    return place


def expect_one_of(runs: Collection[str]) -> str:
    """Return the part of an error message that lists the existing runs."""
    return f"expected one of {', '.join(runs)}" if runs else "there are no runs"


def find_run(workspace: Path, reference: str) -> tuple[str, str]:
    """Return the name and the number of a run.

    Args:
        workspace: Folder for runs.
        reference: `NAME` for the latest run, even if it is unfinished, or for example `NAME@3` for an earlier run.

    Raises:
        InputError: If the run does not exist.
    """
    name, _, suffix = reference.partition("@")
    number = f"{int(suffix):04d}" if suffix.isdecimal() else suffix or LATEST
    known = {
        run: [
            number
            for number, folder in runs_of(workspace / run)
            if (folder / SUMMARY_FILE).exists() or _has_begun(folder)
        ]
        for run in sorted({*names(workspace), *unfinished(workspace)})
    }
    if number not in known.get(name, ()):
        there = [name if number == LATEST else f"{name}@{int(number)}" for number in known.get(name, ())]
        raise InputError(
            f"There is no run {reference!r} in {workspace}: {expect_one_of(there or known)}. Check the name "
            "and the workspace."
        )
    return name, number


def own_bytes(places: Sequence[Path]) -> int:
    """Return the bytes that deleting folders would free. Files with hard links in other folders do not count."""
    files = [path.lstat() for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    links = collections.Counter((file.st_dev, file.st_ino) for file in files)
    sizes = {(file.st_dev, file.st_ino): (file.st_nlink, file.st_size) for file in files}
    return sum(size for file, (count, size) in sizes.items() if links[file] == count)


def _has_failed(place: Path) -> bool:
    summary = Summary.find(place)
    return summary is None or summary.status == State.FAILED


def _numbers(directory: Path) -> list[str]:
    numbers = [
        path.name
        for path in directory.glob("*")
        if re.fullmatch(_NUMBER, path.name) and path.is_dir() and not path.is_symlink()
    ]
    return sorted(numbers, key=int)


def runs_of(run_dir: Path) -> Iterator[tuple[str, Path]]:
    """Yield the number and folder of every run that has the same name as `run_dir`, from the first to the latest."""
    directory = history_dir(run_dir)
    yield from ((number, directory / number) for number in _numbers(directory))
    yield LATEST, run_dir


def names(workspace: Path) -> list[str]:
    """Return the names of all runs in a workspace."""
    latest = {path.parent.name for path in workspace.glob(f"*/{SUMMARY_FILE}")}
    earlier = {path.parent.parent.name for path in workspace.glob(f"*{HISTORY_SUFFIX}/*/{SUMMARY_FILE}")}
    return sorted(latest | {name.removesuffix(HISTORY_SUFFIX) for name in earlier})


def as_rows(workspace: Path, name: str = "") -> list[dict[str, Any]]:
    """Return a mapping for each readable run: `name`, `number`, `directory`, `result`, `metrics` and others.

    A run that has not ended has the status `running` or `interrupted`, and its value of `training` is the last line in
    the run's log that a step has written.

    Raises:
        InputError: If there is no run, or no run with this name.
    """
    rows = []
    for run in [name] if name else sorted({*names(workspace), *unfinished(workspace)}):
        for number, folder in runs_of(workspace / run):
            with contextlib.suppress(InputError):
                rows.append(_row(run, number, folder))
        if _has_begun(workspace / run):
            rows.append(_unfinished_row(workspace, run))
    if not rows:
        raise InputError(
            f"There is no run{f' named {name!r}' if name else ''} in {workspace}: "
            f"{'expected one of ' + ', '.join(known) if (known := names(workspace)) else 'it has no finished runs'}. "
            "Check the workspace."
        )
    return rows


def unfinished(workspace: Path) -> list[str]:
    """Return each name whose latest run has not ended, because the run is in progress or was interrupted."""
    return sorted(path.parent.name for path in workspace.glob(f"*/{LOG_FILE}") if _has_begun(path.parent))


def _has_begun(folder: Path) -> bool:
    return (folder / LOG_FILE).is_file() and not (folder / SUMMARY_FILE).exists()


def curves_of(workspace: Path, name: str) -> Path | None:
    """Return the TensorBoard log folder of the latest run, or None if there is none. The run may still be training."""
    training = (workspace / ".cache" / name / "checkpoints").glob("*/tensorboard")
    written = [workspace / name / "model" / "tensorboard", *training]
    there = [folder for folder in written if folder.is_dir()]
    return max(there, key=lambda folder: folder.stat().st_mtime, default=None)


def _unfinished_row(workspace: Path, name: str) -> dict[str, Any]:
    lines = re.findall(
        rf"^ *\[((?:{'|'.join(STEPS)})\] .+)$", (workspace / name / LOG_FILE).read_text(errors="replace"), re.MULTILINE
    )
    state = State.RUNNING if _is_locked(workspace / ".cache" / name / "lock") else State.INTERRUPTED
    return {
        "name": name,
        "number": LATEST,
        "directory": str(workspace / name),
        "ended": "",
        "status": state,
        "result": state,
        "training": lines[-1].replace("] ", " ", 1) if lines else "",
        "metrics": {},
        "gate": {},
        "num_bytes": 0,
    }


def _is_locked(path: Path) -> bool:
    """Return whether another process holds a lock.

    The check takes the lock for a moment. A run that starts at this moment is rejected.
    """
    try:
        with storage.locked(path, wait=False):
            return False
    except BlockingIOError:
        return True
    except OSError:  # No lock, or a read-only disk: nothing runs.
        return False


def _row(name: str, number: str, folder: Path) -> dict[str, Any]:
    summary = Summary.load(folder)
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        "name": name,
        "number": number,
        "directory": str(folder),
        "ended": _ended(summary, folder),
        "status": summary.status,
        "result": summary.result,
        "training": _training(as_trained(summary, folder)),
        "metrics": summary.metrics,
        "gate": dataclasses.asdict(summary.gate),
        "num_bytes": sum(path.stat().st_size for path in files),
    }


def _training(summary: Summary) -> str:
    """Return optimizer, learning rate, batch size and host of a training run, as text."""
    settings = summary.settings
    optimizer = settings.get("training.optimizer") or settings.get("training.optimizer.name") or ""
    rates = learning_rates(summary.config["training"])
    batch = summary.number("training.batch_size_per_replica")
    parts = [str(optimizer), f"lr {rates}" if rates else "", "" if batch is None else f"batch {batch:g}", summary.host]
    return ", ".join(filter(None, parts))


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the runs as a table, with a column for each training parameter that differs.

    Notes on unfinished runs follow the table.
    """
    notes = [in_one_line(_note(row)) for row in rows if row["status"] in (State.RUNNING, State.INTERRUPTED)]
    columns = dict(_COLUMNS)
    cells = [_cells(row) for row in rows]
    trained = ["" if row["status"] in (State.RUNNING, State.INTERRUPTED) else row["training"] for row in rows]
    if len({*trained} - {""}) > 1:
        columns["training"] = "<"
        cells = [[*row, cell] for row, cell in zip(cells, trained, strict=True)]
    return "\n".join([*Table(columns, cells).lines(), *([""] if notes else []), *notes])


def _cells(row: Mapping[str, Any]) -> list[str | Cell]:
    """Return the table cells of a row, in the order of `_COLUMNS`."""
    return [
        row["name"],
        row["number"],
        row["ended"][:16].replace("T", " ") or "-",
        Cell(row["result"], LOOKS.get(row["result"], "")),
        *score_and_loss(row["metrics"]),
        f"{row['num_bytes'] / 2**20:,.1f}",
    ]


def _note(row: Mapping[str, Any]) -> str:
    """Describe the progress of an unfinished run in one sentence."""
    last_line = row["training"] or "no step has printed anything"
    if row["status"] == State.RUNNING:
        return f"{row['name']} is running: {last_line}"
    return (
        f"{row['name']} was interrupted after: {last_line}. Run `tpu-pipelines run` with its configuration to continue."
    )


def write_index(workspace: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of a workspace's runs. Return its path.

    Args:
        workspace: Folder for runs.
        rows: Rows of `as_rows`.
    """
    rows = sorted(rows, key=lambda row: row["ended"], reverse=True)
    # `compare` writes its page to the same folder.
    is_compared = (workspace / _COMPARISON_FILE).is_file()
    head: list[Block] = [Sentences([Cell("The last comparison", link=_COMPARISON_FILE)])] if is_compared else []
    title = f"{workspace.resolve().name}: {len(rows)} runs"
    text = page.render(
        title,
        [Table(_COLUMNS | dict.fromkeys(["training", *_PAGES], "<"), [_linked(workspace, row) for row in rows])],
        head,
    )
    storage.write_bytes(workspace / _INDEX_FILE, text.encode())
    return workspace / _INDEX_FILE


def _linked(workspace: Path, row: Mapping[str, Any]) -> list[str | Cell]:
    folder = Path(row["directory"])
    place = folder.relative_to(workspace).as_posix()
    links: list[str | Cell] = [
        Cell(name, link=quote(f"{place}/{file}")) if (folder / file).is_file() else "" for name, file in _PAGES.items()
    ]
    return [*_cells(row), Cell(row["training"], "note"), *links]
