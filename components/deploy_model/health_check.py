"""Predicts examples with an export, in a separate process that imports only serving code.

Usage: python -m tpu_components.deploy_model.health_check EXPORT_DIR INPUTS ANSWERS. INPUTS is a .npy file of the
    model's inputs, for example uint8[N, height, width, channels]; ANSWERS gets the outputs, float32[N, outputs].
"""

import sys
from pathlib import Path

import numpy as np

from tpu_components.serving.exported import load_model


def main(export_dir: Path, inputs: Path, answers: Path) -> None:
    """Predict `inputs` with the export and write the outputs to `answers`."""
    np.save(answers, load_model(export_dir).predict(np.load(inputs)))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
