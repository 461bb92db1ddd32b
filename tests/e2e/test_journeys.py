"""From nothing to a prediction, as a stranger would: at most four commands each, on made data.

`pytest -m slow tests/e2e/test_journeys.py -s` prints the commands and the seconds of each journey.
"""

import csv
import json
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tests.support.cli import PIPELINES

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


def spreadsheet(here):
    """Comments as a spreadsheet program saves them: a mark of UTF-8, semicolons, quotes, line breaks, its own names."""
    rng = np.random.default_rng(0)
    good, bad = ("schön", "gut", "herrlich", "hell"), ("öde", "fad", "schwach", "grau")
    with open(here / "Kommentare.csv", "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=";", quoting=csv.QUOTE_ALL)
        writer.writerow(["Nr.", "Kommentar", "Urteil"])
        for i in range(300):
            words = [*rng.choice(good if i % 2 else bad, 3), *rng.choice(["Film", "der", "die", "Bild"], 6)]
            text = f'{words[0]}; "{words[1]}"\n{" ".join(rng.permutation(words[2:]))} {i}'
            writer.writerow([i, text, "ja" if i % 2 else "nein"])
    columns = "--set 'data.columns={text: Kommentar, label: Urteil}'"
    return [
        f"init Kommentare.csv --name comments {columns} --set training.epochs=12",
        "run comments.yaml",
        "predict comments 'schön, gut, herrlich'",
    ]


def arrays(here):
    """Numbers as they lie in many a file: channels first, floats in [0, 1], classes one-hot."""
    rng = np.random.default_rng(0)
    classes = np.arange(400) % 2
    pixels = rng.uniform(0, 0.3, (400, 1, 12, 12)).astype(np.float32)
    pixels[classes == 0, :, :6] += 0.6
    pixels[classes == 1, :, 6:] += 0.6
    np.savez(here / "halves.npz", x=pixels, y=np.eye(2, dtype=np.float32)[classes])
    np.savez(here / "new.npz", x=pixels[:1])
    return [
        "init halves.npz --set training.epochs=6 --set data.class_names=upper,lower",
        "run halves.yaml",
        "predict halves new.npz",
    ]


def pretrained(here):
    """A backbone with weights from a file: its head first, then all of it."""
    flowers(here / "photos", 40)
    code = (
        "import keras; keras.utils.set_random_seed(0); "
        "keras.applications.MobileNetV2((96, 96, 3), 0.35, include_top=False, weights=None)"
        ".save_weights('backbone.weights.h5')"
    )
    subprocess.run([sys.executable, "-P", "-c", code], cwd=here, check=True, capture_output=True)
    stages = "[{epochs: 2, frozen: [backbone], learning_rate: 0.01}, {epochs: 2, learning_rate: 0.00001}]"
    return [
        "init photos --model mobilenet_v2 --set model.parameters.weights=backbone.weights.h5 "
        f"--set model.parameters.alpha=0.35 --set 'training.stages={stages}'",
        "check photos.yaml",
        "run photos.yaml --set gate.beat_baseline=false",
        "predict photos new.png",
    ]


_OWN_MODEL = """
import keras
from keras import layers, ops


@keras.saving.register_keras_serializable()
class Brightness(layers.Layer):
    def call(self, x):
        return ops.mean(ops.cast(x, "float32") / 255, axis=(1, 2))


@keras.saving.register_keras_serializable()
class Net(keras.Model):
    def __init__(self, num_classes, **options):
        super().__init__(**options)
        self.num_classes = num_classes
        self.brightness = Brightness()
        self.hidden = layers.Dense(16, activation="relu")
        self.out = layers.Dense(num_classes, activation="softmax", dtype="float32")

    def call(self, x):
        return self.out(self.hidden(self.brightness(x)))

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


def build_model(image_shape, num_classes):
    return Net(num_classes)
"""


def subclassed(here):
    """A keras.Model of one's own, with a layer of one's own."""
    flowers(here / "photos", 40)
    (here / "net.py").write_text(_OWN_MODEL)
    return [
        "init net.py --from model --data photos --set training.epochs=15 --set training.learning_rate=0.01",
        "check photos.yaml",
        "run photos.yaml",
        "predict photos new.png",
    ]


def labels(here):
    """Pictures with any number of labels each, in one cell."""
    rng = np.random.default_rng(0)
    (here / "sky").mkdir()
    rows = ["path,label"]
    for i in range(160):
        pixels = rng.normal((90, 130, 200), 10, (24, 24, 3))
        if i % 2:
            pixels[2:9, 2:9] = (250, 220, 40)
        if i % 4 > 1:
            pixels[14:22, 4:20] = 245
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(here / "sky" / f"{i}.png")
        rows.append(f"sky/{i}.png,{'|'.join(['sun'] * (i % 2) + ['cloud'] * (i % 4 > 1))}")
    (here / "sky.csv").write_text("\n".join(rows))
    return ["init sky.csv --set training.epochs=12", "run sky.yaml", "predict sky sky/3.png"]


def sixty(here):
    """Sixty photos: no format is thrown away for one of them, and the judgement says how little they tell."""
    flowers(here / "photos", 20)
    return [
        "init photos --set training.epochs=20",
        "run photos.yaml --set gate.beat_baseline=false",
        "predict photos new.png",
    ]


def notebook(here):
    """The notebook, cell after cell."""
    cells = json.loads((PIPELINES / "examples" / "first_model.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (here / "notebook.py").write_text("\n".join([*code, "print(f'a digit  {answers[0].classes[0][0]}')"]))
    return ["python notebook.py"]


# What the answer begins with; of so few photos, and so short a training, any will do.
EXPECTED = {
    mixed_photos: "",
    reviews: "positive",
    rejected: "",
    spreadsheet: "ja",
    arrays: "upper",
    pretrained: "",
    subclassed: "rose",
    labels: "",
    sixty: "",
    notebook: "0",
}


def _words(command):
    """The words of a command: one of tpu-pipelines, or Python."""
    name, *rest = shlex.split(command)
    return (
        [sys.executable, "-P", *rest]
        if name == "python"
        else [sys.executable, "-P", "-m", "tpu_pipelines.cli", name, *rest]
    )


@pytest.mark.parametrize(("journey", "expected"), [*EXPECTED.items()], ids=lambda value: getattr(value, "__name__", ""))
def test_a_stranger_arrives(journey, expected, tmp_path):
    commands = journey(tmp_path)
    assert len(commands) <= 4
    start = time.monotonic()
    for command in commands:
        began = time.monotonic()
        done = subprocess.run(
            _words(command),
            capture_output=True,
            text=True,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        print(f"\n{time.monotonic() - began:6.1f} s  {command}", end="")
        wanted = 3 if journey is rejected and command.startswith("run") else 0
        assert done.returncode == wanted, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    print(
        f"\n{time.monotonic() - start:6.1f} s  {journey.__name__}: {len(commands)} commands, then {done.stdout.strip()}"
    )
    assert done.stdout.split("  ")[1].startswith(expected), done.stdout  # After the input, the likeliest class.
