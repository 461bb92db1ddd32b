"""Lists the examples of a table, such as a CSV file, whose rows contain image paths or texts."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from tpu_components.core.base.errors import InputError, did_you_mean
from tpu_components.core.base.formatting import quoted
from tpu_components.core.base.names import as_nfc
from tpu_components.core.examples.artifacts import Quarantined
from tpu_components.core.examples.class_names import MISSING, missing_labels
from tpu_components.core.examples.example_ids import identify_each
from tpu_components.core.examples.interface import CLASSIFICATION, IMAGE, MULTI_LABEL, REGRESSION, TEXT
from tpu_components.core.files import storage
from tpu_components.core.files.csv_files import (
    DELIMITERS,
    find_column,
    has_decimal_comma,
    is_number,
    open_csv,
    shortened,
    with_points,
)
from tpu_components.core.files.location import Location
from tpu_components.core.sources.columns import Names, NumbersBuilder, PiecesBuilder, find_repeated
from tpu_components.core.sources.fields import known_by, read_splits
from tpu_components.core.sources.listing import Listing, Source, without_labels
from tpu_components.core.sources.params import WriteParams
from tpu_components.core.sources.targets import WEIGHTS, Targets, index_labels, parse_numbers, split_labels
from tpu_components.core.sources.written_paths import find_files

# What to do with examples in one table and their labels in another.
JOIN_TABLES = "join them into one file first, for example with pandas.merge(examples, labels, on='id')"
_EMPTY = frozenset(("",))
# Values in one-hot columns, as pandas writes them, and values that mean "missing".
_HOT_VALUES = {"0": False, "1": True, "0.0": False, "1.0": True}
_UNKNOWN_VALUES = MISSING | {"-1", "-1.0", "?"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows with named columns, such as those of a CSV file. See `list_table`.

    Attributes:
        location: Place of the file.
        version: Digest of the file's content.
        columns: Names of the columns. A column without a name has an empty name, and is not used.
        each_row: Function that returns an iterator over the rows. Each item is a pair: the number of the row, and the
            list of the row's cells in the order of `columns`. A cell is a text, except that for multi-label data, the
            cell of `label` may be a tuple of labels.
        row_names: Name of each row in messages, for example `task 17`, by row number. None means that rows are named
            `line NUMBER`.
        has_decimal_commas: Whether numbers may have a decimal comma.
        notes: Messages to the user, for example about columns whose role was guessed from their names.
    """

    location: Location
    version: str
    columns: Sequence[str]
    each_row: Callable[[], Iterator[tuple[int, Sequence[Any]]]]
    row_names: Sequence[str] | None = None
    has_decimal_commas: bool = False
    notes: tuple[str, ...] = ()

    @property
    def row_kind(self) -> str:
        """Word for a row in messages: `line`, or the first word of the rows' names."""
        return "line" if self.row_names is None else self.row_names[0].partition(" ")[0]

    def name_of(self, number: int) -> str:
        """Return the name of a row in messages."""
        return f"line {number:d}" if self.row_names is None else self.row_names[number]

    def key_of(self, number: int) -> str:
        """Return the key of a row that has no image file, for example `line/00000017`."""
        kind, _, name = self.name_of(number).partition(" ")
        return f"{kind}/{name.zfill(8) if name.isdecimal() else name}"

    def named(self, params: WriteParams, labelled: bool) -> "Table":
        """Return the table with the columns renamed to the standard names, such as `label`.

        Raises:
            InputError: If `params.columns` names a column that the table does not have.
        """
        params = params if labelled else params.without_columns_beyond(self.columns)
        columns, notes = _name_columns(self.columns, params, self.location)
        return dataclasses.replace(self, columns=columns, notes=(*self.notes, *notes))


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of a table, with only the columns that are used.

    Attributes:
        numbers: uint32[count] or int64[count]: number of each row.
        cells: Values by column; `label` may contain tuples of labels.
        bad: Rows that lack a required value.
        table: The table.
        params: Parameters of the records.
        labelled: Whether targets are read.
    """

    numbers: np.ndarray
    cells: Mapping[str, Sequence[Any]]
    bad: tuple[Quarantined, ...]
    table: Table
    params: WriteParams
    labelled: bool

    @property
    def kept(self) -> dict[str, str]:
        """Columns to store with predictions, as {name in the listing: key of the column in `self.cells`}."""
        renamed = {column: name for name, column in self.params.columns.items()}
        kept = {name: renamed.get(name, name) for name in self.params.slice_columns}
        return kept if self.labelled or "id" not in self.cells else {"id": "id", **kept}

    def names(self, column: str) -> Names:
        """Return a column of `self.cells` that contains texts, as `Names`."""
        cells = self.cells[column]
        assert isinstance(cells, Names)
        return cells

    def parse(self, names: Sequence[str], shown: Sequence[str], *rule: str) -> Targets:
        """Parse columns of numbers, float32[count, len(names)].

        Args:
            names: Keys of the columns in `self.cells`.
            shown: Names of the columns in the file, for messages.
            rule: `WEIGHTS` for a column of weights, or nothing for targets; see `what` of `parse_numbers`.
        """
        columns: list[Sequence[str]] = list(map(self.names, names))
        if self.table.has_decimal_commas:
            columns = [
                with_points(column, f"{name!r} of {self.table.location}")
                for column, name in zip(columns, shown, strict=True)
            ]
        places = [f"{self.table.name_of(number)} of {self.table.location}" for number in self.numbers]
        return parse_numbers(columns, shown, places, *rule)


def list_csv(location: Location, params: WriteParams, labelled: bool) -> Listing:
    """List the rows of a CSV file; see `list_table`."""
    return list_table(_open_table(location), params, labelled)


def list_table(table: Table, params: WriteParams, labelled: bool) -> Listing:
    """List the rows of a table. Its columns are `path` or `text`, the columns with the target, and optionally `split`.

    Image paths are absolute, or relative to the folder of the table. Texts are in the table. The target is `label`: a
    class, or any number of labels in a tuple or separated by `|`. For a regression, the targets are the numbers in
    `target_columns`. Targets are read only if `labelled` is true.
    """
    location = table.location
    rows = _read_table(table.named(params, labelled), params, labelled)
    if rows.bad and not labelled:  # Every row needs a prediction.
        raise InputError(
            f"Cannot use {rows.bad[0].key} of {location}: {rows.bad[0].reason}. Correct the {rows.table.row_kind}."
        )
    kind = IMAGE if "path" in rows.cells else TEXT
    root = Location()
    absolute = None
    files = None
    notes = (*rows.table.notes, *_tell_unused(rows, kind)) if labelled else rows.table.notes
    if kind == IMAGE:
        root, keys, absolute = _locate(rows, location)
        paths = keys
        keys, files, path_notes = find_files(root, paths, location.parent)
        notes = (*notes, *path_notes)
        if keys is not paths:
            _check_different(keys, location)
        if keys is not paths and absolute:
            places = zip(absolute, paths, keys, strict=True)
            absolute = Names.collect(path if key == before else f"{root}/{key}" for path, before, key in places)
    else:
        keys = Names.collect(map(rows.table.key_of, rows.numbers.tolist()))
    splits = None
    if labelled and "split" in rows.cells:
        splits, _ = read_splits(rows.cells["split"], location)
        if params.group_column in rows.cells:
            _check_groups(rows.cells[params.group_column], splits.tolist(), location)
    if not labelled:
        labels, classes = without_labels(len(keys))
    elif params.task == REGRESSION:
        classes = _targets_of(params)
        labels, *_ = rows.parse(classes, classes)
    elif params.task == MULTI_LABEL:
        labels, classes, _ = split_labels(rows.cells["label"], params.class_names, keys)
    else:
        labels, classes, _ = index_labels(_with_whole_numbers(rows), params.class_names, keys)
    order = _order_of(keys)
    texts = rows.names("text").take(order).encoded if kind == TEXT else None
    hashes = None if texts is None else identify_each(texts)
    return Listing(
        keys=(keys := keys.take(order)),
        labels=labels[order],
        class_names=classes,
        splits=None if splits is None else splits[order],
        groups=rows.names(params.group_column).take(order) if params.group_column in rows.cells else None,
        slices={name: rows.names(column).take(order) for name, column in rows.kept.items()},
        root=root,
        files=None if files is None else files.take(order),
        texts=texts,
        kind=kind,
        version=table.version,
        identities=known_by(
            rows.names("id").take(order) if "id" in rows.cells else None,
            absolute.take(order) if absolute else keys if hashes is None else Names.of_hashes(hashes),
        ),
        has_ids="id" in rows.cells,
        hashes=hashes,
        notes=notes,
        bad=rows.bad,
        weights=None
        if not labelled or "weight" not in params.columns
        else rows.parse(("weight",), (params.columns["weight"],), WEIGHTS).labels[order, 0],
    )


def read_others(location: Location, params: WriteParams, most: int) -> dict[str, list[str]]:
    """Return the columns of a CSV file that `params` does not use, as {name: values of the first `most` rows}."""
    table = _open_table(location).named(params, labelled=True)
    used = {"path", "text", "label", "split", "id", *params.columns, *params.target_columns, *params.slice_columns}
    places = {name: table.columns.index(name) for name in table.columns if name and name not in used}
    rows = [cells for _, cells in itertools.islice(table.each_row(), most)]
    return {name: [cells[place].strip() for cells in rows] for name, place in places.items()}


def _with_whole_numbers(rows: _Rows) -> Sequence[str]:
    """Return the labels. If all labels are numbers, their decimal commas are replaced by points."""
    labels = rows.names("label")
    if not rows.table.has_decimal_commas:
        return labels
    # Names such as `0,5` in class_names stay as they are.
    are_named = any(map(has_decimal_comma, rows.params.class_names))
    # Usually the first label shows that labels are names.
    if are_named or not is_number(labels[0]) or not all(map(is_number, set(labels))):
        return labels
    return with_points(labels, f"the labels of {rows.table.location}")


def _targets_of(params: WriteParams) -> tuple[str, ...]:
    """Return the names of the columns with the target."""
    return params.target_columns or ("label",)


def _read_table(table: Table, params: WriteParams, labelled: bool) -> _Rows:
    """Read the needed columns of a table. Other columns are not kept in memory."""
    targets = _targets_of(params) if labelled else ()
    if "label" in targets and "label" not in table.columns:
        table = _with_hot_columns(table, params)
    example = "text" if "text" in table.columns and "path" not in table.columns else "path"
    kept = {column: name for name, column in params.columns.items()}
    others = [kept.get(name, name) for name in params.slice_columns]
    if params.group_column:
        others = [params.group_column, *others]
    if labelled and "weight" in params.columns:
        others.append("weight")
    wanted = list(dict.fromkeys([example, *targets, *others]))
    _check_columns(table, wanted, targets)
    # Empty texts are quarantined later, when they are read.
    missing = {name: _EMPTY for name in wanted if name not in ("text", "id", *params.slice_columns)}
    numbers = [*targets, "weight", "split"] if labelled else []
    missing |= {name: MISSING for name in numbers if name in {*wanted, *table.columns}}
    if labelled and params.task != REGRESSION:
        # Multi-label examples may have no label.
        missing["label"] = missing_labels(params.class_names) - (_EMPTY if params.task == MULTI_LABEL else set())
    return _Rows(*_read_cells(table, wanted, missing), table, params, labelled)


def _open_table(location: Location) -> Table:
    """Open a CSV file.

    Raises:
        InputError: If the file has no rows, or cannot be read.
    """
    content = storage.read_bytes(location)
    file = open_csv(location, content)
    if not file.has_rows:
        raise InputError(
            f"Found no rows in {location}: expected a header line with path and label, or text and label, and a line "
            "for each example. Check the file."
        )
    notes = []
    if file.delimiter != ",":
        how = DELIMITERS.get(file.delimiter, repr(file.delimiter))
        notes.append(f"the values of the CSV file are separated by {how}")
    return Table(
        location,
        hashlib.sha256(content).hexdigest(),
        file.columns,
        file.rows,
        has_decimal_commas=file.delimiter != ",",  # Otherwise a comma may separate thousands.
        notes=tuple(notes),
    )


def _find_hot_columns(table: Table, names: Sequence[str]) -> dict[str, int]:
    """Return {name: index} of the one-hot columns among `names`: those with only 0 and 1.

    Raises:
        InputError: If a column contains missing values, such as -1 or empty cells, besides 0 or 1.
    """
    seen: dict[str, dict[str, str]] = {name: {} for name in names}  # The first row of each value of each column.
    hot = {name: place for place, name in enumerate(table.columns) if name in seen}
    for number, cells in table.each_row():
        for name, place in list(hot.items()):
            value = cells[place].strip() if isinstance(cells[place], str) else None
            if value in _HOT_VALUES or value in _UNKNOWN_VALUES:
                seen[name].setdefault(str(value), table.name_of(number))
            else:
                del hot[name]
        if len(hot) < 2:
            return {}
    hot = {name: place for name, place in hot.items() if _HOT_VALUES.keys() & seen[name].keys()}
    if len(hot) < 2:
        return {}
    for name in hot:
        for value in seen[name].keys() - _HOT_VALUES.keys():
            raise InputError(
                f"The column {name!r} of {table.location} must contain only 0 and 1 to be used as a label, but "
                f"{seen[name][value]} contains {value!r}. Write 0 or 1 in every row, or remove the column."
            )
    return hot


def _with_hot_columns(table: Table, params: WriteParams) -> Table:
    """Return the table with a column `label` that is made from the columns with only 0 and 1.

    Return the table unchanged if it has fewer than two of these columns.

    Raises:
        InputError: If the task is regression, if a row of a classification does not contain exactly one 1, or if a
            one-hot column has missing values.
    """
    others = {"path", "text", "split", "id", *params.columns, params.group_column, *params.slice_columns}
    hot = _find_hot_columns(table, [name for name in table.columns if name and name not in others])
    if not hot:
        return table

    def labels_of(cells: Sequence[Any]) -> tuple[str, ...]:
        return tuple(name for name, place in hot.items() if _HOT_VALUES[cells[place].strip()])

    advice = ""
    if params.task == REGRESSION:
        advice = f"Name the columns with the targets: data.target_columns=[{', '.join(hot)}]."
    elif params.task == CLASSIFICATION:
        odd = next((table.name_of(number) for number, cells in table.each_row() if len(labels_of(cells)) != 1), "")
        if odd:
            advice = (
                f"{odd.capitalize()} does not have exactly one 1. Set data.task=multi_label to use each column as a "
                "label."
            )
    names = quoted(list(hot))
    if advice:
        raise InputError(
            f"The column 'label' is missing in {table.location}. The columns {names} contain 0 and 1. {advice}"
        )
    _check_repeated(table, list(hot))

    def each_row() -> Iterator[tuple[int, Sequence[Any]]]:
        for number, cells in table.each_row():
            labels = labels_of(cells)
            yield number, [*cells, labels if params.task == MULTI_LABEL else labels[0]]

    note = f"the columns {names} contain 0 and 1, so each is used as a label. Set data.columns to use another column"
    # Columns with blank names are not reported as unused.
    columns = [*("" if name in hot else name for name in table.columns), "label"]
    return dataclasses.replace(table, columns=columns, each_row=each_row, notes=(*table.notes, note))


def _read_cells(
    table: Table, wanted: Sequence[str], missing: Mapping[str, Container[Any]]
) -> tuple[np.ndarray, dict[str, Sequence[Any]], tuple[Quarantined, ...]]:
    """Read the columns `wanted`, and `split` and `id` if they exist.

    Return `numbers`, `cells` and `bad` of `_Rows`.

    Args:
        table: The table.
        wanted: Names of columns.
        missing: For each column that needs a value, the texts that stand for a missing value.

    Raises:
        InputError: If every row lacks a required value, or the rows cannot be read.
    """
    kept = [name for name in table.columns if name in {*wanted, "split", "id"}]
    places = [(name, table.columns.index(name), name in {*wanted, "split"} - {"text"}) for name in kept]
    numbers = NumbersBuilder()
    bad: list[Quarantined] = []
    texts = {name: PiecesBuilder() for name in kept}
    tuples: list[Sequence[str]] = []
    for number, cells in table.each_row():
        row = {}
        for name, place, is_stripped in places:
            cell = cells[place]
            # Surrounding spaces must not make a different class.
            row[name] = cell.strip() if is_stripped and isinstance(cell, str) else cell
        if lacking := [name for name, forms in missing.items() if row[name] in forms]:
            reasons = (f"{name!r} is {repr(row[name]) if row[name] else 'empty'}" for name in lacking)
            bad.append(Quarantined(table.key_of(number), " and ".join(reasons)))
            continue
        numbers.add(number)
        for name, cell in row.items():
            if isinstance(cell, str):
                texts[name].add(cell.encode())
            else:
                tuples.append(cell)
    if not len(known := numbers.numbers()):
        raise InputError(
            f"No {table.row_kind} of {table.location} can be used. For example, in {bad[0].key}, {bad[0].reason}. "
            "Fill in the column, or name another column in data.columns."
        )
    columns: dict[str, Sequence[Any]] = {name: Names(column.pieces()) for name, column in texts.items()}
    if tuples:
        columns["label"] = tuples
    return known, columns, tuple(bad)


def _order_of(keys: Names) -> np.ndarray | slice:
    """Return the indices that sort the keys, int[count], or `slice(None)` if the keys are sorted already."""
    if all(earlier <= later for earlier, later in itertools.pairwise(keys.encoded)):
        return slice(None)
    held = list(keys.encoded)  # UTF-8 sorts as the strings do.
    return np.array(sorted(range(len(held)), key=held.__getitem__))


def _check_columns(table: Table, wanted: Sequence[str], targets: Sequence[str]) -> None:
    columns = [name for name in table.columns if name]
    if missing := [name for name in wanted if name not in columns]:
        expected = ", ".join(("path (or text)", *targets))
        rule = "The first line must name" if table.row_names is None else "Expected"
        raise InputError(
            f"Missing columns in {table.location}: {quoted(missing)}. Received: {columns}. {rule} the columns "
            f"{expected}, and all columns that data.columns, data.target_columns, data.group_column and "
            "data.slice_columns name. A column named split is optional."
            f"{_advise_on_columns(columns, missing)}"
        )
    _check_repeated(table, [*wanted, "split", "id"])


def _check_repeated(table: Table, names: Sequence[str]) -> None:
    """Check that no used column occurs more than once.

    Raises:
        InputError: If one of the columns `names` occurs more than once.
    """
    if repeated := [name for name in names if list(table.columns).count(name) > 1]:
        raise InputError(
            f"Repeated columns in {table.location}: {quoted(repeated)}. Received: {[*filter(None, table.columns)]}. "
            "Each column that is used needs a unique name. Rename or remove the repeated columns."
        )


def _locate(rows: _Rows, location: Location) -> tuple[Location, Names, Names | None]:
    """Return the folder of the images, their paths relative to this folder, and their absolute paths.

    If the paths in the table are relative, the folder is that of the table, and the third value is None.

    Raises:
        InputError: If absolute paths have no common folder, a relative path is outside the folder, or a path occurs
            twice.
    """
    written = rows.names("path")
    relative = written
    absolute = None
    if all(path.startswith("/") or Location(path).is_remote for path in written):
        common = storage.common_folder(list(written))
        if common is None:
            raise InputError(
                f"The images of {location} are in several places: {shortened(written[0])!r} and others. Expected all "
                "images on this machine, or all in one bucket. Copy them to one place."
            )
        root = Location(common)
        relative = Names.collect(path.removeprefix(root).lstrip("/") for path in written)
        absolute = written
    else:
        root = location.parent
    keys = PiecesBuilder()
    for number, path in zip(rows.numbers, relative, strict=True):
        try:
            root.child(path)
        except InputError as error:
            name = rows.table.name_of(number)
            raise InputError(f"{name[:1].upper()}{name[1:]} of {location}: {error}") from error
        keys.add(str(PurePosixPath(path)).encode())
    names = Names(keys.pieces())
    _check_different(names, location)
    return root, names, absolute


def _check_different(paths: Names, location: str) -> None:
    """Check that no path occurs twice.

    Raises:
        InputError: If a path occurs twice.
    """
    if repeated := find_repeated(paths):
        raise InputError(
            f"Duplicate paths in {location}: {quoted(repeated)}. Each image must be listed only once, because the "
            "same image in two splits would distort the evaluation. Remove the repeated lines."
        )


def _name_columns(cells: Sequence[str], params: WriteParams, location: str) -> tuple[list[str], list[str]]:
    """Return the columns renamed to this project's names, and notes on columns that are chosen by common names."""
    taken = dict(params.columns)
    if strange := sorted(set(taken.values()) - set(cells)):
        raise InputError(
            f"Missing columns in {location}: {quoted(strange)}. The setting data.columns names them. Received: "
            f"{list(cells)}. Correct data.columns."
        )
    notes = []
    written = [column for column in cells if column.lower() == "split"]
    if len(written) == 1 and "split" not in taken:
        taken["split"] = written[0]
    wanted = ["label"] if not params.target_columns else []
    if not {"path", "text"} & {*cells, *taken}:
        wanted += ["path", "text"]
    for name in wanted:
        column = find_column(name, cells)
        if column != name and name not in taken:
            taken[name] = column
            notes.append(f"column {column!r} is used as the {name}. Set data.columns to use another column")
    names = {column: name for name, column in taken.items()}
    # If another column now has a column's name, the column is marked as unused.
    return [names.get(column, f"{column} (unused)" if column in taken else column) for column in cells], notes


def _tell_unused(rows: _Rows, kind: str) -> Iterator[str]:
    """Yield a note that names the unused columns of the table, if there are any."""
    if unused := [name.removesuffix(" (unused)") for name in rows.table.columns if name and name not in rows.cells]:
        yield f"columns that are not used: {quoted(unused)}. A model gets only the {kind} of a {rows.table.row_kind}"


def _advise_on_columns(columns: Sequence[str], missing: Sequence[str]) -> str:
    """Return advice on missing columns for an error message."""
    named = ", ".join(f"{name}: …" for name in missing if name in ("path", "text", "label"))
    if not named:
        return did_you_mean(missing[0], columns)
    numbers = " A table of numbers, without images or texts, is not supported." if "path" in missing else ""
    if missing == ["path"]:
        named_so = f"data.columns={{{named}}} or {{text: …}}"
        return f"{numbers} If a column contains paths of images or texts, name this column: {named_so}."
    join = f" If the labels are in another file, {JOIN_TABLES}." if "label" in missing else ""
    return f" If the columns have other names, set data.columns={{{named}}}.{numbers}{join}"


def _check_groups(groups: Sequence[str], splits: Sequence[str], location: str) -> None:
    first: dict[str, str] = {}
    for group, split in zip(map(as_nfc, groups), splits, strict=True):
        if first.setdefault(group, split) != split:
            raise InputError(
                f"Group {group!r} is in two splits of {location}: {first[group]} and {split}. Expected all examples "
                "of a group in one split. Correct the split column, or remove data.group_column."
            )


SOURCE = Source(
    "csv:FILE",
    list_csv,
    suffixes=(".csv", ".tsv"),
    takes=("task", "group_column", "slice_columns", "columns"),
    is_table=True,
)
