"""A step of a pipeline, as a platform wraps it."""

from collections.abc import Callable
from typing import Any

Step = Callable[..., Any]
