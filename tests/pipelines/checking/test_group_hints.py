import datetime

import numpy as np
import pytest
from PIL import Image

from tpu_components.core.sources.kinds import list_examples
from tpu_components.core.sources.params import WriteParams
from tpu_pipelines.checking.group_hints import find_group_hints


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
        "the column 'patient' has 12 values for 120 rows, 'p0' for 10: if rows of one value depend on each other, set "
        "data.group_column=patient"
    )
    assert taken.startswith("the 120 times in the column 'taken' come in 12 runs without a gap of 60 s")
    assert not _hints(WriteParams(scans, group_column="patient")), "sites are too few, ages are numbers"


def test_names_of_pictures_suggest_groups(tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        for i in range(40):
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / folder / f"p{i // 4}_{i % 4:02d}.png")
    (hint,) = _hints(WriteParams(f"images:{tmp_path}"))
    assert hint.startswith("the names of 80 files have 20 beginnings, 'cat/p0_' in 4")


def test_numbered_pictures_suggest_none(tmp_path):
    for folder in ("cat", "dog"):
        (tmp_path / folder).mkdir()
        for i in range(40):
            Image.fromarray(np.full((4, 4), i, np.uint8)).save(tmp_path / folder / f"{folder}.{i:04d}.png")
    assert not _hints(WriteParams(f"images:{tmp_path}"))
