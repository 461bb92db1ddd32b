"""The handwritten digits that come with scikit-learn."""

import hashlib

import numpy as np

from components.create_tfrecords.params import WriteParams
from components.create_tfrecords.sources.arrays import list_arrays
from components.create_tfrecords.sources.listing import Listing, Source
from components.errors import InputError


def list_sklearn(location: str, params: WriteParams) -> Listing:
    """List scikit-learn's bundled 8×8 handwritten digits."""
    if location != "digits":
        raise InputError(f"Unknown source {params.source!r}: expected sklearn:digits, the data set that is bundled.")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # The set counts ink from 0 to 16.
    return list_arrays({"": (images, digits.target)}, hashlib.sha256(images.tobytes()).hexdigest(), params)


SOURCE = Source("sklearn:digits", list_sklearn, is_place=False)
