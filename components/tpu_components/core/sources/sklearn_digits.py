"""The handwritten digits that scikit-learn bundles, read from a copy in this package.

Importing scikit-learn instead would take half as long as an entire run in which every step is cached.

Source: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, CC BY 4.0. The file is the one that scikit-learn's `load_digits` reads.
"""

import hashlib
from pathlib import Path

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.arrays import list_arrays
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams


def list_sklearn(location: str, params: WriteParams, labelled: bool) -> Listing:
    """List the bundled 8×8 handwritten digits."""
    if location != "digits":
        raise InputError(f"Unknown source {params.source!r}: expected sklearn:digits, the only bundled data set.")
    # A row is an example: 64 pixels from 0 to 16 (the most ink), and the digit.
    table = np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return list_arrays({"": (images, table[:, -1].astype(int))}, hashlib.sha256(images.tobytes()).hexdigest(), params)


SOURCE = Source("sklearn:digits", list_sklearn, is_place=False)
