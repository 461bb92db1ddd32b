"""Results in a readable form for Python consoles, notebooks and pandas."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from tpu_components.core.base.terminal import visible


class Displayed:
    """Base class of results with a readable form for consoles, notebooks and pandas.

    A subclass that is a dataclass needs `repr=False`, because `dataclass` would otherwise replace `__repr__`.
    """

    def __str__(self) -> str:
        raise NotImplementedError

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return a mapping for each row of the table that `to_pandas` returns. Mappings may be nested."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(visible(str(self)))}</pre>"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame. Nested values become columns such as `cost.usd_per_run`."""
        import pandas

        return pandas.json_normalize(list(self.rows()))
