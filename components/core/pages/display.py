"""How a result shows itself in Python: in a console, in a notebook and as a table of pandas."""

import html
from collections.abc import Mapping, Sequence
from typing import Any


class Displayed:
    """A result that a console, a notebook and pandas show readably; a dataclass of it has `repr=False`."""

    def __str__(self) -> str:
        raise NotImplementedError

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of `to_pandas`: a mapping for each, which may be nested."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame; a nested value has a column of its own, as `cost.usd_per_run`."""
        import pandas

        return pandas.json_normalize(list(self.rows()))
