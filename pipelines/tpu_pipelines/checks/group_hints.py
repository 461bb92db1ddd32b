"""Detects groups of dependent examples that the configuration does not name, such as the images of one patient."""

import dataclasses
import datetime
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from tpu_components.core.base.errors import InputError
from tpu_components.core.examples.interface import IMAGE
from tpu_components.core.sources.csv_file import read_others
from tpu_components.core.sources.listing import Listing
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset

_LOOKED_AT = 20_000
_FEWEST = 10  # Groups. Fewer values are more likely categories, such as cameras, than groups, such as patients.
_NAMED = re.compile(r"patient|subject|person|user|speaker|author|session|series|sequence|video|scan|group|batch|burst")
_TOGETHER_SECONDS = 60


def find_group_hints(listing: Listing, params: WriteParams) -> Iterator[str]:
    """Yield advice to set `data.group_column` if file names, CSV columns or times suggest groups.

    Yield nothing if `group_column` is already set.
    """
    if params.group_column:
        return
    if params.source_ref.kind == "csv":
        for name, values in read_others(params.source_ref.place, params, _LOOKED_AT).items():
            known = [value for value in values if value]
            if (times := _times(known)) is not None:
                gaps = (later - earlier for earlier, later in itertools.pairwise(times))
                runs = 1 + sum(gap > _TOGETHER_SECONDS for gap in gaps)
                if _are_groups(runs, len(times)):
                    yield (
                        f"the {len(times):,} times in the column {name!r} form {runs:,} series without a gap of "
                        f"{_TOGETHER_SECONDS} s. If the examples of a series depend on each other, add a column that "
                        "numbers the series, and name it in data.group_column"
                    )
            elif (_NAMED.search(name.lower()) or not _are_numbers(known)) and _are_groups(len(set(known)), len(known)):
                (most, count), num_values = Counter(known).most_common(1)[0], len(set(known))
                yield (
                    f"the column {name!r} has {num_values:,} values for {len(known):,} rows, for example {most!r} in "
                    f"{count} rows. If rows with the same value depend on each other, "
                    f"{_advise_on_column(params, name, values)}"
                )
    if listing.kind == IMAGE and listing.files:
        stems = Counter(
            re.sub(r"\d+$", "", key.rpartition(".")[0]) for key in itertools.islice(listing.keys, _LOOKED_AT)
        )
        folders = {stem.rpartition("/")[0] for stem in stems}
        if _are_groups(len(stems) // len(folders), stems.total() // len(folders)):
            most, count = stems.most_common(1)[0]
            yield (
                f"the names of {stems.total():,} files have {len(stems):,} different prefixes, for example {most!r} in "
                f"{count} files. If these examples depend on each other, list them in a CSV file with a column for the "
                "prefix, and name this column in data.group_column"
            )


def _advise_on_column(params: WriteParams, name: str, values: Sequence[str]) -> str:
    """Return advice to set `data.group_column` to the name of a column.

    If the column has empty cells, or the data set cannot be split by this column, the advice says so.
    """
    setting = f"data.group_column={name}"
    if num_empty := values.count(""):
        # An empty cell sets its row aside, which can remove a whole class.
        return (
            f"fill the {num_empty:,} empty cells of this column, with a unique value for each row that belongs to no "
            f"group; then set {setting}"
        )
    try:
        plan_dataset(dataclasses.replace(params, group_column=name))
    except InputError as error:
        return f"{setting} keeps such rows in one split, but does not work with these data: {error}"
    return f"set {setting}"


def _are_groups(num_groups: int, num_examples: int) -> bool:
    return _FEWEST <= num_groups <= num_examples / 2


def _are_numbers(values: Sequence[str]) -> bool:
    return all(re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?", value) for value in values)


def _times(values: Sequence[str]) -> list[float] | None:
    """Return the values as sorted Unix times in seconds, or None if one of them is not an ISO 8601 date with a time."""
    try:
        times = [datetime.datetime.fromisoformat(value) for value in values if len(value) > len("2026-11-25")]
    except ValueError:
        return None
    return sorted(time.timestamp() for time in times) if values and len(times) == len(values) else None
