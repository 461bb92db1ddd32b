"""The handwritten digits that come with scikit-learn."""

import hashlib

import numpy as np

from tpu_components.core.base.errors import InputError
from tpu_components.core.sources.arrays import list_arrays
from tpu_components.core.sources.listing import Listing, Source
from tpu_components.core.sources.params import WriteParams


def list_sklearn(location: str, params: WriteParams, labelled: bool) -> Listing:
    """List scikit-learn's bundled 8×8 handwritten digits."""
    if location != "digits":
        raise InputError(f"Unknown source {params.source!r}: expected sklearn:digits, the data set that is bundled.")
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # The set counts ink from 0 to 16.
    return list_arrays({"": (images, digits.target)}, hashlib.sha256(images.tobytes()).hexdigest(), params)


SOURCE = Source("sklearn:digits", list_sklearn, is_place=False)
