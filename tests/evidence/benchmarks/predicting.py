"""predict_batch beside the loop over `model.predict` that one would write instead, on the same image files, in turn.

Each run of either is a process of its own, which loads its libraries and its model. Run by `python -m
tests.evidence.benchmarks predict`.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

NUM_IMAGES, ROUNDS = 100_000, 3
_BATCH = 64


def make_pictures(folder: Path, count: int = NUM_IMAGES) -> Path:
    """JPEG files of smooth noise, 32×32, ten thousand in a folder."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number // 10_000}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8))
        coarse.resize((32, 32), Image.Resampling.BICUBIC).save(path)
    return folder


def loop(model_dir: Path, folder: Path, output: Path) -> int:
    """Read, decode and answer batches with `model.predict`, and write a line for each image; returns how many."""
    from PIL import Image

    from tpu_components.core.machines import device

    device.prepare("tensorflow", "cpu", 1, "float32")
    from tpu_components.core.models.trained import load_trained_model

    model: Any = load_trained_model(model_dir)
    files = sorted(folder.rglob("*.jpg"))
    with open(output, "w") as lines:
        for start in range(0, len(files), _BATCH):
            batch = files[start : start + _BATCH]
            pixels = np.stack([np.asarray(Image.open(file)) for file in batch])
            for file, row in zip(batch, model.predict(pixels, verbose=0), strict=True):
                lines.write(json.dumps({"key": str(file), "class": int(row.argmax()), "all": row.tolist()}) + "\n")
    return len(files)


if __name__ == "__main__":
    begin = time.perf_counter()
    number = loop(*map(Path, sys.argv[1:4]))
    print(json.dumps({"per_second": number / (time.perf_counter() - begin)}))
