"""Answers examples with an export: run in a process of its own, with the code that serves and none that trains.

Usage: python -m tpu_components.deploy_model.health_check EXPORT_DIR INPUTS ANSWERS. INPUTS is a .npy file of what
    the model takes, as uint8[N, height, width, channels]; ANSWERS gets float32[N, outputs].
"""

import sys
from pathlib import Path

import numpy as np

from tpu_components.serving.exported import load_model


def main(export_dir: Path, inputs: Path, answers: Path) -> None:
    """Answer the inputs."""
    np.save(answers, load_model(export_dir).predict(np.load(inputs)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
