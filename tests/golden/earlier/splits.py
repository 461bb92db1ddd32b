"""Makes the splits that an earlier version draws for data sets whose names are as macOS writes them, in Unicode's NFD.

    cd CHECKOUT && .venv/bin/python …/tests/golden/earlier/splits.py …/tests/golden/earlier/COMMIT.splits.json

CHECKOUT: see `make.py`. `tests/e2e/test_upgrade.py` makes the same data sets and compares the splits.
"""

import csv
import json
import os
import sys
import tarfile
import tempfile
import unicodedata
from pathlib import Path

import numpy as np

_CLASSES = ("Café", "Tee", "Übung", "Ångström")
_COUNT = 120


def _nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def make(folder: Path) -> dict[str, dict]:
    """Write the data sets to a folder; returns the arguments of `WriteParams` of each, by name."""
    from PIL import Image

    random = np.random.default_rng(0)
    rows = []
    for i in range(_COUNT):
        name = _CLASSES[i % 4]
        pixels = Image.fromarray(random.integers(0, 256, (8, 8), np.uint8))
        for place in (f"images/{name}", f"divided/{('train', 'train', 'validation', 'test')[i // 4 % 4]}/{name}"):
            path = folder / _nfd(place) / _nfd(f"Größe {i}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels.save(path)
        text = _nfd(f"Erzähl mir mehr über Nummer{i} und Café{i % 7}")
        path = folder / "texts" / _nfd(name) / _nfd(f"Größe {i}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        rows.append(
            {
                "path": _nfd(f"images/{name}/Größe {i}.png"),
                "text": text,
                "label": _nfd(name),
                "labels": "|".join(map(_nfd, {name, _CLASSES[i // 4 % 4]})),
                _nfd("Prüfer"): _nfd(f"Zoë {i // 3}"),
                "key": _nfd(f"Schlüssel {i}"),
                "stars": f"{i % 5}.0",
            }
        )

    def table(name: str, *columns: str) -> str:
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows([[row[column] for column in columns] for row in rows])
        return f"csv:{folder}/{name}"

    with tarfile.open(folder / "pictures.tar", "w") as archive:
        archive.add(folder / "images", ".")
    checker = _nfd("Prüfer")
    return {
        "folders": {"source": f"images:{folder}/images"},
        "split folders": {"source": f"images:{folder}/divided"},
        "folders of texts": {"source": f"text:{folder}/texts"},
        "an archive": {"source": f"webdataset:{folder}/pictures.tar"},
        "paths": {"source": table("paths.csv", "path", "label")},
        "texts": {"source": table("texts.csv", "text", "label")},
        "groups": {"source": table("groups.csv", "text", "label", checker), "group_column": checker},
        "ids": {"source": table("ids.csv", "text", "label", "key"), "columns": {"id": "key"}},
        "paths with ids": {"source": table("path_ids.csv", "path", "label", "key"), "columns": {"id": "key"}},
        "several labels": {
            "source": table("several.csv", "text", "labels"),
            "columns": {"label": "labels"},
            "task": "multi_label",
        },
        "whole numbers with a point": {"source": table("stars.csv", "text", "stars"), "columns": {"label": "stars"}},
    }


def splits_of(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Write records of all data sets; returns the keys of each split, sorted, by the data set's name."""
    from tpu_components.core.examples.artifacts import Manifest
    from tpu_components.core.examples.records import load_split
    from tpu_components.create_tfrecords import WriteParams, write_records

    found = {}
    for number, (name, arguments) in enumerate(make(folder).items()):
        write_records(WriteParams(num_workers=1, **arguments), folder / f"records{number}")
        manifest = Manifest.load(folder / f"records{number}")
        found[name] = {
            split: sorted(load_split(folder / f"records{number}", manifest, split, with_keys=True).keys)
            for split in manifest.splits
        }
    return found


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    with tempfile.TemporaryDirectory() as scratch:
        splits = splits_of(Path(scratch))
    Path(sys.argv[1]).write_text(json.dumps(splits, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
