"""CSV file of image paths or of texts."""

import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, did_you_mean, reading
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.artifacts import Quarantined
from tpu_components.core.examples.class_names import MISSING, missing_labels
from tpu_components.core.examples.example_ids import identify_each
from tpu_components.core.examples.interface import CLASSIFICATION, IMAGE, MULTI_LABEL, REGRESSION, TEXT
from tpu_components.core.examples.text import MAX_CSV_FIELD_CHARACTERS
from tpu_components.core.files import storage
from tpu_components.core.files.csv_files import DELIMITERS, find_column, find_delimiter, with_points
from tpu_components.core.sources.columns import Files, Names, NumbersBuilder, PiecesBuilder, find_repeated
from tpu_components.core.sources.fields import known_by, read_splits
from tpu_components.core.sources.listing import Listing, Source, without_labels
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import (
    SEPARATOR,
    WEIGHTS,
    Targets,
    index_labels,
    parse_numbers,
    shown,
    split_labels,
)

_SHOWN_CHARACTERS = 60
_EMPTY = frozenset(("",))


@dataclasses.dataclass(frozen=True)
class _Table:
    """A CSV file, with columns renamed to this project's names.

    Attributes:
        location: Place of the file.
        content: Bytes of the file.
        delimiter: Character between its values.
        columns: Names of the columns.
        params: Parameters of the records.
        labelled: Whether the target is read.
        notes: Messages to the user, for example about columns whose role was guessed from their names.
        hot: Columns of 0 and 1, one for each label, that replace a column `label`.
    """

    location: str
    content: bytes
    delimiter: str
    columns: list[str]
    params: WriteParams
    labelled: bool
    notes: tuple[str, ...]
    hot: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the columns with the target."""
        return (self.params.target_columns or ("label",)) if self.labelled else ()

    @property
    def named(self) -> list[str]:
        """Names of the columns, and `label` if columns of 0 and 1 replace it."""
        return [*self.columns, *(["label"] if self.hot else [])]

    def lines(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the first line number of each row, and the row's values by column.

        Raises:
            InputError: If the rest of the file cannot be read.
        """
        lines: list[str] = []  # Of the current row.

        def each_line() -> Iterator[str]:
            for line in _text_of(self.content):
                lines.append(line)
                yield line

        with _reading(self.location):
            reader = csv.DictReader(each_line(), self.columns, delimiter=self.delimiter)
            next(reader, None)  # The columns' own names.
            lines.clear()
            for row in reader:
                while not lines[0].strip("\r\n"):  # The reader leaves out empty lines.
                    del lines[0]
                number = reader.line_num - len(lines) + 1
                if len(lines) > 1:
                    self._check_quotes(lines, number)
                lines.clear()
                if self.hot:
                    row["label"] = SEPARATOR.join(name for name in self.hot if (row[name] or "").strip() == "1")
                yield number, row

    def _check_quotes(self, lines: Sequence[str], number: int) -> None:
        """Check that an unpaired quotation mark does not join several lines to one row.

        Raises:
            InputError: If several lines are joined; names the first one.
        """
        try:
            for _ in csv.reader(lines, delimiter=self.delimiter, strict=True):
                pass
        except csv.Error as error:
            raise InputError(
                f"Malformed line {number} of {self.location}: a quotation mark in it has no counterpart, and "
                f"{len(lines):,} lines would become one row ({error}). Remove it, or write the cell in quotation marks "
                "with each one inside it doubled."
            ) from error


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of a table, with the columns that are used.

    Attributes:
        numbers: uint32[count] or int64[count]: line number of each row.
        cells: Values by column.
        bad: Rows that lack a required value.
        table: The table.
    """

    numbers: np.ndarray
    cells: Mapping[str, Names]
    bad: tuple[Quarantined, ...]
    table: _Table

    @property
    def kept(self) -> dict[str, str]:
        """Columns to store with predictions, as {name in the listing: name in `cells`}."""
        params = self.table.params
        renamed = {column: name for name, column in params.columns.items()}
        kept = {name: renamed.get(name, name) for name in params.slice_columns}
        return kept if self.table.labelled or "id" not in self.cells else {"id": "id", **kept}

    def parse(self, names: Sequence[str], shown: Sequence[str], *rule: str) -> Targets:
        """Parse columns of numbers, float32[count, len(names)].

        Args:
            names: Names of the columns.
            shown: Names of the columns in the file, for messages.
            rule: Argument `what` of `parse_numbers`, if any.
        """
        columns: list[Sequence[str]] = [self.cells[name] for name in names]
        if self.table.delimiter != ",":  # Otherwise a comma may separate thousands.
            columns = list(map(with_points, columns))
        places = [f"line {number} of {self.table.location}" for number in self.numbers]
        return parse_numbers(columns, shown, places, *rule)


def list_csv(location: str, params: WriteParams, labelled: bool, content: bytes | None = None) -> Listing:
    """List the rows of a CSV file with the columns `path` or `text`, those of the target, and optionally `split`.

    Image paths are relative to the file's folder; texts are in the file itself. The target is `label`: a class, or any
    number of labels separated by `|`. For a regression, it is the numbers in `target_columns`. Without `labelled`, no
    target is read. `content` replaces the content of the file.
    """
    rows = _read_table(_open_table(location, params, labelled, content))
    if rows.bad and not labelled:  # Every line needs a prediction.
        raise InputError(f"Cannot use {rows.bad[0].key} of {location}: {rows.bad[0].reason}. Correct the line.")
    kind = IMAGE if "path" in rows.cells else TEXT
    root, absolute = "", None
    if kind == IMAGE:
        root, keys, absolute = _locate(rows, location)
    else:
        keys = Names.collect(f"line/{number:08d}" for number in rows.numbers)
    splits = None
    if labelled and "split" in rows.cells:
        splits, _ = read_splits(rows.cells["split"], location)
        if params.group_column in rows.cells:
            _check_groups(rows.cells[params.group_column], splits.tolist(), location)
    if not labelled:
        labels, classes = without_labels(len(keys))
    elif params.task == REGRESSION:
        classes = rows.table.targets
        labels, *_ = rows.parse(classes, classes)
    else:
        read = split_labels if params.task == MULTI_LABEL else index_labels
        labels, classes, _ = read(rows.cells["label"], params.class_names, keys)
    order = _order_of(keys)
    texts = rows.cells["text"].take(order).encoded if kind == TEXT else None
    hashes = None if texts is None else identify_each(texts)
    return Listing(
        keys=(keys := keys.take(order)),
        labels=labels[order],
        class_names=classes,
        splits=None if splits is None else splits[order],
        groups=rows.cells[params.group_column].take(order) if params.group_column in rows.cells else None,
        slices={name: rows.cells[column].take(order) for name, column in rows.kept.items()},
        root=root,
        files=Files.collect(storage.stat_files(root, keys)) if kind == IMAGE else None,
        texts=texts,
        kind=kind,
        version=hashlib.sha256(rows.table.content).hexdigest(),
        identities=known_by(
            ids.take(order) if (ids := rows.cells.get("id")) else None,
            absolute.take(order) if absolute else keys if hashes is None else Names.of_hashes(hashes),
        ),
        hashes=hashes,
        notes=rows.table.notes,
        bad=rows.bad,
        weights=None
        if not labelled or "weight" not in params.columns
        else rows.parse(("weight",), (params.columns["weight"],), WEIGHTS).labels[order, 0],
    )


def read_others(location: str, params: WriteParams, most: int) -> dict[str, list[str]]:
    """Return the columns that `params` does not use, as {name: values of the first `most` rows}."""
    table = _open_table(location, params)
    used = {"path", "text", "label", "split", "id", *params.columns, *params.target_columns, *params.slice_columns}
    names = [name for name in table.columns if name not in used]
    rows = [row for _, row in itertools.islice(table.lines(), most)]
    return {name: [(row[name] or "").strip() for row in rows] for name in names}


def _read_table(table: _Table) -> _Rows:
    """Read the columns of a table that are used; only these stay in memory."""
    params, targets = table.params, table.targets
    if "label" in targets and "label" not in table.columns:
        table = _with_hot_columns(table)
    example = "text" if "text" in table.columns and "path" not in table.columns else "path"
    kept = {column: name for name, column in params.columns.items()}
    others = [kept.get(name, name) for name in params.slice_columns]
    if params.group_column:
        others = [params.group_column, *others]
    if table.labelled and "weight" in params.columns:
        others.append("weight")
    wanted = list(dict.fromkeys([example, *targets, *others]))
    _check_columns(table, wanted)
    # An empty text is set aside later, when it is read.
    missing = {name: _EMPTY for name in wanted if name not in ("text", "id", *params.slice_columns)}
    numbers = [*targets, "weight", "split"] if table.labelled else []
    missing |= {name: MISSING for name in numbers if name in {*wanted, *table.columns}}
    if table.labelled and params.task != REGRESSION:
        # Multi-label examples may have no label.
        missing["label"] = missing_labels(params.class_names) - (_EMPTY if params.task == MULTI_LABEL else set())
    return _read_rows(table, wanted, missing)


def _open_table(location: str, params: WriteParams, labelled: bool = True, content: bytes | None = None) -> _Table:
    content = storage.read_bytes(location) if content is None else content
    csv.field_size_limit(MAX_CSV_FIELD_CHARACTERS)
    with _reading(location):
        content.decode("utf-8-sig")  # The whole file, so that an error names the position in it.
        delimiter, notes = find_delimiter(_text_of(content).readline()), []
        if delimiter in DELIMITERS:
            notes.append(f"the values of the CSV file are separated by {DELIMITERS[delimiter]}")
        reader = csv.reader(_text_of(content), delimiter=delimiter)
        cells = [as_nfc(name.strip()) for name in next(reader, ())]
        columns, renamed = _name_columns(cells, params if labelled else params.without_columns_beyond(cells), location)
        is_empty = not any(reader)  # Like csv.DictReader, ignores empty lines.
    if is_empty:
        raise InputError(
            f"Found no rows in {location}: expected a header line with path and label, or text and label, "
            "and a line per example."
        )
    return _Table(location, content, delimiter, columns, params, labelled, (*notes, *renamed))


def _with_hot_columns(table: _Table) -> _Table:
    """Return the table with its columns of only 0 and 1 as labels, if there are at least two such columns.

    Raises:
        InputError: If the task is regression, or classification and a line has no 1 or several.
    """
    params = table.params
    others = {"path", "text", "split", "id", *params.columns, params.group_column, *params.slice_columns}
    hot, odd = [name for name in table.columns if name not in others], 0
    for number, row in table.lines():
        hot = [name for name in hot if (row[name] or "").strip() in ("0", "1")]
        if len(hot) < 2:
            return table
        odd = odd or (sum(row[name].strip() == "1" for name in hot) != 1) * number
    advice = ""
    if params.task == REGRESSION:
        advice = f"Name the targets: data.target_columns=[{', '.join(hot)}]."
    elif odd and params.task == CLASSIFICATION:
        advice = f"Line {odd} has not one 1: set data.task=multi_label to take each of them for a label."
    if advice:
        raise InputError(
            f"Missing columns in {table.location}: 'label'. The columns {shown(hot)} hold 0 and 1. {advice}"
        )
    note = f"the columns {shown(hot)} hold 0 and 1: each is taken for a label; data.columns may name another column"
    return dataclasses.replace(table, hot=tuple(hot), notes=(*table.notes, note))


def _text_of(content: bytes) -> io.TextIOWrapper:
    """Return a text stream of a file's content, which keeps line endings unchanged."""
    return io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="\n")


def _reading(location: str) -> contextlib.AbstractContextManager[None]:
    return reading(location, "a CSV file in UTF-8", "Save it as one.", UnicodeDecodeError, csv.Error)


def _read_rows(table: _Table, wanted: Sequence[str], missing: Mapping[str, Container[str]]) -> _Rows:
    """Read the columns `wanted`, and `split` and `id` if the table has them.

    Args:
        table: The table.
        wanted: Names of columns.
        missing: For each column that needs a value, the texts that stand for a missing one.

    Raises:
        InputError: If a line has too few or too many values, or every line lacks a required value.
    """
    stripped = {*wanted, "split"} - {"text"}
    kept = [name for name in table.named if name in {*wanted, "split", "id"}]
    numbers, cells, bad = NumbersBuilder(), {name: PiecesBuilder() for name in kept}, list[Quarantined]()
    for number, row in table.lines():
        for name in stripped:
            if isinstance(row.get(name), str):
                row[name] = row[name].strip()  # An invisible space must not make another class.
        # A line too short has None as a value, one too long has it as a key.
        if None in row or None in row.values():
            raise InputError(
                f"Malformed line {number} of {table.location}: expected values for {table.columns}, received "
                f"{[_cut(value) for value in row.values() if value is not None]}. Correct the line."
            )
        if lacking := [name for name, texts in missing.items() if row[name] in texts]:
            reasons = (f"{name!r} is {repr(row[name]) if row[name] else 'empty'}" for name in lacking)
            bad.append(Quarantined(f"line/{number:08d}", " and ".join(reasons)))
            continue
        numbers.add(number)
        for name, column in cells.items():
            column.add(row[name].encode())
    if not len(known := numbers.numbers()):
        raise InputError(
            f"No line of {table.location} can be used: in {bad[0].key} {bad[0].reason}, and so on. Fill the "
            "column, or name another one in data.columns."
        )
    columns = {name: Names(column.pieces()) for name, column in cells.items()}
    return _Rows(known, columns, tuple(bad), table)


def _order_of(keys: Names) -> np.ndarray | slice:
    """Return the indices that sort the keys, int[count], or `slice(None)` if they are sorted already."""
    if all(earlier <= later for earlier, later in itertools.pairwise(keys.encoded)):
        return slice(None)
    held = list(keys.encoded)  # UTF-8 sorts as the strings do.
    return np.array(sorted(range(len(held)), key=held.__getitem__))


def _check_columns(table: _Table, wanted: Sequence[str]) -> None:
    columns = table.named
    if missing := [name for name in wanted if name not in columns]:
        expected = ", ".join(("path (or text)", *table.targets))
        raise InputError(
            f"Missing columns in {table.location}: {shown(missing)}. Received: {columns}. The first line must name the "
            f"columns {expected}, optionally split, and those that columns, target_columns, group_column or "
            "slice_columns names."
            f"{_advise_on_columns(columns, missing)}"
        )
    if len(set(columns)) < len(columns):
        raise InputError(
            f"Repeated columns in {table.location}: {columns}. Expected every column once. Rename or remove one."
        )


def _locate(rows: _Rows, location: str) -> tuple[str, Names, Names | None]:
    """Return the folder of the images, their paths relative to it, and their absolute paths if the file has these.

    Raises:
        InputError: If the images are in several places or outside the folder, or a path occurs twice.
    """
    written = rows.cells["path"]
    relative, absolute = written, None
    if all(path.startswith("/") or storage.is_remote(path) for path in written):
        root = storage.common_folder(list(written))
        if root is None:
            raise InputError(
                f"Paths of several places in {location}: {_cut(written[0])!r} and others. Expected all on this "
                "machine, or all in one bucket. Copy the images to one place."
            )
        relative, absolute = Names.collect(path.removeprefix(root).lstrip("/") for path in written), written
    else:
        folder, separator, _ = location.rpartition("/")
        root = (folder or "/") if separator else "."
    keys = PiecesBuilder()
    for number, path in zip(rows.numbers, relative, strict=True):
        try:
            storage.join(root, path)
        except InputError as error:
            raise InputError(f"Line {number} of {location}: {error}") from error
        keys.add(str(PurePosixPath(path)).encode())
    if repeated := find_repeated(names := Names(keys.pieces())):
        raise InputError(
            f"Duplicate paths in {location}: {shown(repeated)}. Expected every image once; the same image in two "
            "splits would make the evaluation lie. Remove the repeated lines."
        )
    return root, names, absolute


def _cut(value: Any) -> Any:
    """Shorten a long cell for a message."""
    is_long = isinstance(value, str) and len(value) > _SHOWN_CHARACTERS
    return f"{value[:_SHOWN_CHARACTERS]}… ({len(value):,} characters)" if is_long else value


def _name_columns(cells: Sequence[str], params: WriteParams, location: str) -> tuple[list[str], list[str]]:
    """Return the columns renamed to this project's names, and notes on roles that were guessed from names."""
    taken = dict(params.columns)
    if strange := sorted(set(taken.values()) - set(cells)):
        raise InputError(
            f"No columns {shown(strange)} in {location}, which data.columns names. Received: {list(cells)}. Correct it."
        )
    notes = []
    wanted = ["label"] if not params.target_columns else []
    if not {"path", "text"} & {*cells, *taken}:
        wanted += ["path", "text"]
    for name in wanted:
        column = find_column(name, cells)
        if column != name and name not in taken:
            taken[name] = column
            notes.append(f"column {column!r} is taken for the {name}; data.columns may name another one")
    names = {column: name for name, column in taken.items()}
    # If another column now has a column's name, the column is marked as unused.
    return [names.get(column, f"{column} (unused)" if column in taken else column) for column in cells], notes


def _advise_on_columns(columns: Sequence[str], missing: Sequence[str]) -> str:
    """Return advice on missing columns, as text for a message."""
    named = ", ".join(f"{name}: …" for name in missing if name in ("path", "text", "label"))
    if not named:
        return did_you_mean(missing[0], columns)
    numbers = " A table of numbers, without images or texts, is not supported." if "path" in missing else ""
    return f" Or say which they are: data.columns={{{named}}}.{numbers}"


def _check_groups(groups: Sequence[str], splits: Sequence[str], location: str) -> None:
    first: dict[str, str] = {}
    for group, split in zip(groups, splits, strict=True):
        if first.setdefault(group, split) != split:
            raise InputError(
                f"Group {group!r} stands in two splits of {location}: {first[group]} and {split}. Expected every "
                "group in one. Correct the split column, or leave group_column out."
            )


SOURCE = Source(
    "csv:FILE",
    list_csv,
    takes=("task", "group_column", "slice_columns", "columns"),
    is_table=True,
)
