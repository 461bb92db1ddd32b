"""Keras, JAX, TensorFlow and parts of SciPy, each imported when it is first used.

Some of these libraries take seconds to import.

`from tpu_components.core.base.frameworks import keras` at the top of a module does not import Keras yet. So commands
start quickly, and a step loads only the frameworks that it needs.
"""

import importlib
import os
import sys
import typing
from typing import Any

if not typing.TYPE_CHECKING:

    class _Later:
        """A module that is imported when one of its attributes is first read."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):  # doctest and inspect read these attributes of every value in a module.
                raise AttributeError(attribute)
            if self._name not in sys.modules:
                os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Hides TensorFlow's log messages.
            return getattr(importlib.import_module(self._name), attribute)

    jax, jnp, lax = map(_Later, ("jax", "jax.numpy", "jax.lax"))
    keras, ops, tf = map(_Later, ("keras", "keras.ops", "tensorflow"))
    sparse, special = map(_Later, ("scipy.sparse", "scipy.special"))  # The image that serves has no SciPy.
else:  # `fingerprint` follows these imports, so that an upgrade of a framework invalidates cached steps.
    import jax
    import keras
    import tensorflow as tf
    from jax import lax
    from jax import numpy as jnp
    from keras import ops
    from scipy import sparse, special

# If these are installed, Keras imports them, to accept their data and to draw and wrap models. This takes half of the
# time that the import of Keras takes.
_COMPANIONS = ("matplotlib", "pandas", "sklearn")


def import_keras_alone() -> None:
    """Import Keras faster, by hiding scikit-learn, pandas and matplotlib during the import.

    Keras imports these libraries if they are installed. They can still be imported later.

    None in `sys.modules` makes an import fail as if the library were not installed:
    https://docs.python.org/3/reference/import.html#the-module-cache
    """
    absent = [name for name in _COMPANIONS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        importlib.import_module("keras")
    finally:
        for name in absent:
            del sys.modules[name]


__all__ = ["import_keras_alone", "jax", "jnp", "keras", "lax", "ops", "sparse", "special", "tf"]
