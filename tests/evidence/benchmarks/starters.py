"""What the models that `init` writes learn from small data sets.

`python -m tests.evidence.benchmarks.starters --seeds 5` runs it.

Five kinds of data, each as a user would bring them: a folder or a table of 300 to 2,000 examples. Per seed the examples
are drawn anew from ../shared/data, `init` writes configuration and model, and nothing is set but `training.epochs`.
Each model is then compared, on 500 examples that it has not seen, with the answer that is always the commonest one: a
one-sided sign test over the examples, and for the rare class, of which half of
them are, Fisher's exact test of answers against truth.
"""

import argparse
import contextlib
import csv
import dataclasses
import os
import statistics
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.cli import DATA

# What a photo of CIFAR-10 shows, as labels of which each has one to three.
LABELS = {
    "airplane": "vehicle|flies",
    "automobile": "vehicle|road",
    "bird": "animal|flies",
    "cat": "animal|pet",
    "dog": "animal|pet",
    "frog": "animal",
    "horse": "animal|farm",
    "ship": "vehicle|water",
    "truck": "vehicle|road",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of small data set: how many examples of which classes are trained on and tested."""

    train: Mapping[str, int]
    test: Mapping[str, int]
    suffix: str = ".jpg"
    mode: str = "RGB"
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


_PHOTOS = ("automobile", "frog", "horse", "ship")


def _each(names: Sequence[str], count: int) -> dict[str, int]:
    return dict.fromkeys(names, count)


KINDS = {
    "photos": Kind(_each(_PHOTOS, 150), _each(_PHOTOS, 125)),
    "greys": Kind(_each(("airplane", "automobile"), 150), _each(("airplane", "automobile"), 250), mode="L"),
    "texts": Kind(_each(("neg", "pos"), 750), _each(("neg", "pos"), 250), suffix=".txt"),
    "rare": Kind({"automobile": 1_980, "ship": 20}, {"automobile": 250, "ship": 250}),
    "labels": Kind(_each(tuple(LABELS), 111), _each(tuple(LABELS), 55), labels=LABELS),
}


def unpack(folder: Path) -> None:
    """Unpack the data of ../shared/data."""
    for name in ("cifar10", "imdb_sample"):
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")


def write(kind: Kind, files: Path, folder: Path, seed: int, splits: Sequence[str]) -> str:
    """Write the examples as a user has them, those of each split in a folder; returns the argument of `init`."""
    from PIL import Image

    rows = []
    source = files / ("imdb_sample" if kind.suffix == ".txt" else "cifar10")
    for split in splits:
        rng = np.random.default_rng(seed)
        for name, count in getattr(kind, split).items():
            paths = rng.permutation(sorted(map(str, (source / split / name).glob(f"*{kind.suffix}"))))
            for path in map(Path, paths[:count]):
                target = folder / "data" / split / name / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                if kind.mode == "L":
                    Image.open(path).convert("L").save(target.with_suffix(".png"))
                else:
                    target.write_bytes(path.read_bytes())
                rows.append((os.path.relpath(target, folder), kind.labels.get(name), split))
    if not kind.labels:
        return str(folder / "data")
    with (folder / "data.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "label", "split"), *rows])
    return str(folder / "data.csv")


def learn(kind: Kind, files: Path, overrides: Sequence[str], seed: int) -> dict[str, Any]:
    """Write, train and judge; returns the scores of model and constant answer, and the p-value."""
    from tpu_components.core.examples.artifacts import Manifest, load_history
    from tpu_components.core.examples.records import load_split
    from tpu_components.core.models.trained import load_trained_model, predict
    from tpu_components.core.sources.params import WriteParams
    from tpu_components.create_tfrecords import write_records
    from tpu_components.train_model.training import train_model
    from tpu_pipelines.config.configuration import load_config
    from tpu_pipelines.starting.data_overview import look_at, source_of
    from tpu_pipelines.starting.first_configuration import plan_start

    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        # `init` sees the training examples alone; those that are tested come after it.
        source = source_of(write(kind, files, Path(scratch), seed, ["train"]))
        start = plan_start(look_at(WriteParams(source)), "starter")
        start.write()
        write(kind, files, Path(scratch), seed, ["train", "test"])
        config = load_config(start.config_path, [*overrides, f"training.seed={seed}"])
        write_records(config.data, Path("records"))
        train_model(config.training, Path("records"), Path("model"))
        manifest = Manifest.load(Path("records"))
        split = load_split(Path("records"), manifest, "test")
        outputs = predict(load_trained_model(Path("model")), split.inputs, 256)
        history = load_history(Path("model"))
    return judge(kind, np.asarray(split.labels), outputs) | {"epochs": len(history)}


def judge(kind: Kind, truth: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
    """Compare answers with the truth, and with the constant answer."""
    from scipy import stats

    if kind.labels:
        right = ((outputs > 0.5) == truth).mean(axis=1)
        constant = ((truth.mean(axis=0) > 0.5) == truth).mean(axis=1)
    else:
        answers = outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0.5).astype(int)
        commonest = int(np.argmax(list(kind.train.values())))
        right, constant = (answers == truth).astype(float), (truth == commonest).astype(float)
    better, worse = int((right > constant).sum()), int((right < constant).sum())
    p = stats.binomtest(better, better + worse, alternative="greater").pvalue if better + worse else 1.0
    if len(set(kind.train.values())) > 1:
        table = [[int(((answers == a) & (truth == t)).sum()) for t in (1, 0)] for a in (1, 0)]
        p = stats.fisher_exact(table, alternative="greater").pvalue
    return {"model": right.mean(), "constant": constant.mean(), "p": p}


def main() -> None:
    """Print a line for each kind, number of epochs and seed, and a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--epochs", default="3,20")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder with cifar10 and imdb_sample, unpacked")
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", help="over what init writes, as for run"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if not options.data:
            unpack(Path(scratch))
        files = (options.data or Path(scratch)).resolve()
        for name in options.kinds.split(","):
            for epochs in map(int, options.epochs.split(",")):
                overrides = [f"training.epochs={epochs}", *options.overrides]
                scores = []
                for seed in range(options.seeds):
                    result = learn(KINDS[name], files, overrides, seed)
                    scores.append(result["model"])
                    print(
                        f"{name:<8}{epochs:>3} epochs, seed {seed}: {result['model']:.3f}, constant answer "
                        f"{result['constant']:.3f}, p {result['p']:.1e}, {result['epochs']} epochs trained",
                        flush=True,
                    )
                print(f"{name:<8}{epochs:>3} epochs: median {statistics.median(scores):.3f}", flush=True)


if __name__ == "__main__":
    main()
