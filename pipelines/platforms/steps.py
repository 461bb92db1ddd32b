"""Type of a pipeline step that a platform has wrapped."""

from collections.abc import Callable
from typing import Any

Step = Callable[..., Any]
