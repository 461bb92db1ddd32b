import datetime

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.params import WriteParams
from tpu_components.create_tfrecords.planning import plan_dataset
from tpu_pipelines.checks.group_hints import find_group_hints


def _hints(params):
    return list(find_group_hints(list_examples(params), params))


@pytest.fixture
def scans(tmp_path):
    """A CSV file of 120 texts of 12 patients, in bursts of 10 that are an hour apart; no site has its own texts."""
    start, hour, second = datetime.datetime(2026, 11, 25, 8), datetime.timedelta(hours=1), datetime.timedelta(seconds=1)
    rows = [
        f"scan {i},{'ab'[i % 2]},p{i // 10},{i % 3},{i * 7 % 60},{start + hour * (i // 10) + second * (i % 10)}"
        for i in range(120)
    ]
    (tmp_path / "scans.csv").write_text("\n".join(["text,label,patient,site,age,taken", *rows]))
    return f"csv:{tmp_path}/scans.csv"


def test_columns_and_times_of_a_table_suggest_groups(scans):
    patient, taken = _hints(WriteParams(scans))
    assert patient == (
        "the column 'patient' has 12 values for 120 rows, for example 'p0' in 10 rows. If rows with the same value "
        "depend on each other, set data.group_column=patient"
    )
    assert taken.startswith("the 120 times in the column 'taken' form 12 series without a gap of 60 s")
    assert not _hints(WriteParams(scans, group_column="patient")), "sites are too few, ages are numbers"


def test_names_of_pictures_suggest_groups(tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        for i in range(40):
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / folder / f"p{i // 4}_{i % 4:02d}.png")
    (hint,) = _hints(WriteParams(f"images:{tmp_path}"))
    assert hint.startswith("the names of 80 files have 20 different prefixes, for example 'cat/p0_' in 4")


def test_numbered_pictures_suggest_none(tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        for i in range(40):
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / folder / f"{folder}.{i:04d}.png")
    assert not _hints(WriteParams(f"images:{tmp_path}"))


@pytest.mark.parametrize("rows", [range(0, 120, 2), range(5), [119]], ids=["a class", "a group", "one"])
def test_a_column_with_empty_cells_is_proposed_once_it_is_filled(scans, tmp_path, rows):
    """An empty cell sets its row aside: with those of one class empty, the other class alone was left."""
    path = tmp_path / "scans.csv"
    header, *lines = path.read_text().splitlines()

    def write(cell):
        cells = [line.split(",") for line in lines]
        for row in rows:
            cells[row][2] = cell.format(row)
        path.write_text("\n".join([header, *map(",".join, cells)]))

    write("")
    hint = next(hint for hint in _hints(WriteParams(scans)) if "'patient'" in hint)
    assert f"fill the {len(rows)} empty cells of this column, with a unique value for each row" in hint
    write("alone-{}")
    assert hint.endswith("then set data.group_column=patient")
    assert plan_dataset(WriteParams(scans, group_column="patient")).num_examples == 120


def test_a_column_that_does_not_fit_the_data_is_not_proposed(scans, tmp_path):
    """All of a patient's rows are in one split: a file that divides them itself would be refused."""
    path = tmp_path / "scans.csv"
    header, *lines = path.read_text().splitlines()
    splits = ("train", "train", "test")
    path.write_text("\n".join([f"{header},split", *(f"{line},{splits[i % 3]}" for i, line in enumerate(lines))]))
    hint = next(hint for hint in _hints(WriteParams(scans)) if "'patient'" in hint)
    assert "set data.group_column" not in hint
    assert "Correct the split column" in hint
