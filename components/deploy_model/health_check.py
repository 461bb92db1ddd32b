"""Answers images with an export: run in a process of its own, with the code that serves and none that trains.

Usage: python -m components.deploy_model.health_check EXPORT_DIR IMAGES ANSWERS. IMAGES is a .npy file of
    uint8[N, height, width, channels]; ANSWERS gets probabilities, float32[N, classes].
"""

import sys
from pathlib import Path

import numpy as np

from components.prediction import load_model


def main(export_dir: Path, images: Path, answers: Path) -> None:
    """Answer the images."""
    np.save(answers, load_model(export_dir).predict(np.load(images)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
