"""From nothing to a prediction, as a stranger would: at most four commands each, on made data.

`pytest -m slow tests/e2e/test_journeys.py -s` prints the commands and the seconds of each journey.
"""

import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow  # Each is a whole run, of a minute or two.

_COLOURS = {"daisy": (235, 235, 235), "rose": (200, 30, 60), "tulip": (220, 200, 40)}


def flower(name, seed, size=(40, 48)):
    """A photo of a flower: a spot of its colour before a green field."""
    rng = np.random.default_rng(seed)
    height, width = size
    pixels = rng.normal((60, 110, 60), 15, (height, width, 3))
    rows, columns = np.mgrid[:height, :width]
    spot = (rows - height / 2) ** 2 + (columns - width / 2) ** 2 < (min(size) * rng.uniform(0.25, 0.4)) ** 2
    pixels[spot] = np.array(_COLOURS[name]) + rng.normal(0, 12, (spot.sum(), 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def flowers(root, per_class):
    """A folder for each flower."""
    for number, name in enumerate(_COLOURS):
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            flower(name, 1000 * number + i).save(root / name / f"{i}.png")
    flower("rose", 9999).save(root.parent / "new.png")


def mixed_photos(here):
    """Sizes, formats and modes as they come from several cameras, turned by EXIF, one of them broken."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for number, name in enumerate(_COLOURS):
        (here / "photos" / name).mkdir(parents=True)
        for i in range(40):
            photo = flower(name, 1000 * number + i, (40 + i, 90 - i))
            kind, options = (("jpg", {"exif": exif}), ("png", {}), ("webp", {}))[i % 3]
            (photo.convert("P") if kind == "png" and i % 4 == 0 else photo).save(
                here / "photos" / name / f"{i}.{kind}", **options
            )
    (here / "photos" / "rose" / "broken.jpg").write_bytes(b"\xff\xd8\xffcut")
    flower("rose", 9999, (60, 60)).save(here / "new.jpg")
    return ["init photos --set training.epochs=15", "check photos.yaml", "run photos.yaml", "predict photos new.jpg"]


def reviews(here):
    """Texts in a table."""
    rng = np.random.default_rng(0)
    good, bad = ("lovely", "fine", "moving", "bright"), ("dull", "boring", "weak", "grey")
    rows = ["review,sentiment"]
    for i in range(300):
        words = [*rng.choice(good if i % 2 else bad, 3), *rng.choice(["film", "plot", "actor", "scene", "the", "a"], 6)]
        rows.append(f'"{", ".join(rng.permutation(words))} {i}",{"positive" if i % 2 else "negative"}')
    (here / "reviews.csv").write_text("\n".join(rows))
    return ["init reviews.csv --set training.epochs=15", "run reviews.yaml", "predict reviews 'a lovely, moving film'"]


def rejected(here):
    """A model that the gate does not want, tried all the same: the run says 3, and how to."""
    flowers(here / "photos", 40)
    options = "--set training.epochs=3 --set gate.minimum.accuracy=1.0 --set gate.maximum.loss=0.000001"
    return [f"init photos {options}", "run photos.yaml", "export runs/photos", "predict runs/photos new.png"]


# What the answer begins with; of so few photos, and so short a training, any will do.
EXPECTED = {mixed_photos: "", reviews: "positive", rejected: ""}


@pytest.mark.parametrize(("journey", "expected"), [*EXPECTED.items()], ids=lambda value: getattr(value, "__name__", ""))
def test_a_stranger_arrives(journey, expected, tmp_path):
    commands = journey(tmp_path)
    assert len(commands) <= 4
    start = time.monotonic()
    for command in commands:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pipelines.cli", *shlex.split(command)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        print(f"\n{time.monotonic() - began:6.1f} s  tpu-pipelines {command}", end="")
        wanted = 3 if journey is rejected and command.startswith("run") else 0
        assert done.returncode == wanted, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    print(
        f"\n{time.monotonic() - start:6.1f} s  {journey.__name__}: {len(commands)} commands, then {done.stdout.strip()}"
    )
    assert done.stdout.split("  ")[1].startswith(expected), done.stdout  # After the input, the likeliest class.
