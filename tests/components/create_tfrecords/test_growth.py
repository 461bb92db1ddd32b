"""Claims about data sets that grow: whatever is added, no example that has been tested is ever trained on."""

import functools
import itertools
import json

import numpy as np
import pytest
from PIL import Image

from tests.components.create_tfrecords.test_large_sources import write_tar
from tests.support.pictures import encoded
from tpu_components.core.examples import records
from tpu_components.core.examples.artifacts import Manifest
from tpu_components.create_tfrecords import WriteParams, write_records

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

_SERIES = 12  # Near copies of each tenth example, as frames of a film.


def _original(number: int) -> int:
    """A tenth of the examples are copies of earlier ones, so that series of them grow slowly."""
    return number % 10 + 10 * (number // (10 * _SERIES)) if number % 10 == 3 and number >= 10 else number


@functools.cache
def _picture(number: int) -> np.ndarray:
    noise = np.random.default_rng(_original(number)).integers(20, 200, (7, 9, 3), np.uint8)
    picture = Image.fromarray(noise).resize((24, 24), Image.Resampling.BICUBIC)
    return np.asarray(picture) + np.uint8(number // 10 % 50 if _original(number) != number else 0)


@functools.cache
def _png(number: int) -> bytes:
    return encoded(_picture(number))


def _text(number: int) -> str:
    return f"word{_original(number)} and more" + "!" * (number // 10 if _original(number) != number else 0)


def _label(number: int) -> str:
    return "ab"[number // 10 % 2]


def _write_folders(folder, numbers, suffix, content):
    for number in numbers:
        path = folder / _label(number) / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content(number))
    return {f"{_label(number)}/{number}.{suffix}": number for number in numbers}


def _write_images(folder, numbers):
    return f"images:{folder}", _write_folders(folder, numbers, "png", _png)


def _write_csv_of_images(folder, numbers):
    named = _write_folders(folder / "pictures", numbers, "png", _png)
    rows = [f"pictures/{name},{_label(number)}" for name, number in named.items()]
    (folder / "table.csv").write_text("\n".join(["path,label", *rows]))
    return f"csv:{folder}/table.csv", {f"pictures/{name}": number for name, number in named.items()}


def _write_csv_of_texts(folder, numbers):
    rows = [f"{_text(number)},{_label(number)}" for number in numbers]
    (folder / "table.csv").write_text("\n".join(["text,label", *rows]))
    return f"csv:{folder}/table.csv", {f"line/{line:08d}": number for line, number in enumerate(numbers, 2)}


def _write_csv_with_ids(folder, numbers):
    """Some rows have no id, and some share one."""
    ids = ["" if number % 10 == 3 else f"id-{number // 2}" for number in numbers]
    rows = [f"{own},{_text(number)},{_label(number)}" for own, number in zip(ids, numbers, strict=True)]
    (folder / "table.csv").write_text("\n".join(["id,text,label", *rows]))
    return f"csv:{folder}/table.csv", {f"line/{line:08d}": number for line, number in enumerate(numbers, 2)}


def _write_folder_of_texts(folder, numbers):
    return f"text:{folder}", _write_folders(folder, numbers, "txt", lambda number: _text(number).encode())


def _write_parquet(folder, numbers):
    half = len(numbers) // 2
    for part, some in enumerate((numbers[:half], numbers[half:])):
        table = pa.table({"image": [_png(number) for number in some], "label": [_label(number) for number in some]})
        pq.write_table(table, folder / f"part-{part}.parquet")
    keys = [
        f"part-{i // half if i < 2 * half else 1}.parquet[{i if i < half else i - half}]" for i in range(len(numbers))
    ]
    return f"parquet:{folder}", dict(zip(keys, numbers, strict=True))


def _write_npz(folder, numbers):
    np.savez(folder / "data.npz", x=np.stack([_picture(n) for n in numbers]), y=[_label(n) for n in numbers])
    return f"npz:{folder}/data.npz", {f"all/{place:08d}": number for place, number in enumerate(numbers)}


def _write_webdataset(folder, numbers):
    """Later archives repeat names of earlier ones."""
    ordered, keys = sorted(numbers), {}
    repeats = len(numbers) > 200
    for archive, some in itertools.groupby(ordered, lambda number: number // 200):
        members = []
        for number in some:
            members += [
                (f"{number % 200}.png", _png(number)),
                (f"{number % 200}.cls", _label(number).encode()),
            ]
            keys[f"{archive}.tar/{number % 200}.png" if repeats else f"{number % 200}.png"] = number
        write_tar(folder / f"{archive}.tar", members)
    return f"webdataset:{folder}", keys


_KINDS = [
    _write_images,
    _write_csv_of_images,
    _write_csv_of_texts,
    _write_csv_with_ids,
    _write_folder_of_texts,
    _write_parquet,
    _write_npz,
    _write_webdataset,
]


def _grow(write, folder, first: int, times: int, share: float) -> int:
    """Grow a data set and check that nothing trains that was tested; returns how many were left out in all."""
    random, tested, left_out = np.random.default_rng(0), set(), 0
    count = first
    for time in range(times + 1):
        here = folder / str(time)
        here.mkdir()
        # Growth has no direction: what is added stands in front, behind and between.
        source, number_of = write(here, random.permutation(count).tolist())
        write_records(WriteParams(source, num_workers=1), folder / f"records-{time}")
        manifest = Manifest.load(folder / f"records-{time}")
        stands = {
            number_of[key]: name
            for name in manifest.splits
            for key in records.load_split(folder / f"records-{time}", manifest, name, with_keys=True).keys
        }
        tested |= {number for number, split in stands.items() if split == "test"}
        trained = {number for number, split in stands.items() if split == "train"}
        assert len(stands) + manifest.num_left_out == count
        assert not tested & trained
        copies = json.loads((folder / f"records-{time}" / "copies.json").read_text())
        assert copies["across_splits"] == 0
        left_out += manifest.num_left_out
        count = round(count * (1 + share))
    assert len(trained) > len(stands) / 3
    assert len(tested) > len(stands) / 8
    return left_out


@pytest.mark.parametrize("write", _KINDS)
def test_what_was_tested_never_trains_when_data_grow_by_a_third(write, tmp_path):
    assert _grow(write, tmp_path, 160, 2, 0.33) > 10


@pytest.mark.slow  # Takes minutes: 168 data sets are written.
@pytest.mark.parametrize("write", _KINDS)
def test_what_was_tested_never_trains_when_data_grow_twenty_times_by_a_twentieth(write, tmp_path):
    assert _grow(write, tmp_path, 400, 20, 0.05) > 100
