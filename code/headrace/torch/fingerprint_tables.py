"""Tables of other libraries, as `fingerprint` looks at them: their columns, and rows that are spread over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.torch.dataset_code import is_the_scripts

MOST_BYTES = 4 << 20
"""Read of a table of Arrow's, whose rows may be pictures on disk."""
MOST_COLUMNS = 64
FEWEST_ROWS, MOST_ROWS = 16, 4096


def looked_at(value: Any, places: int) -> tuple[str, Any] | None:
    """What a table says of its shape, and about `places` of its values, as an array or a list; of all else, none."""
    look = _OF.get(type(value).__module__.partition(".")[0])
    return look(value, places) if look and not is_the_scripts(type(value)) else None


def _pandas(value: Any, places: int) -> tuple[str, Any] | None:
    if not hasattr(value, "to_numpy"):
        return None
    rows = value[:: max(value.size // places, 1)] if hasattr(value, "__len__") else value
    names = list(map(str, getattr(value, "columns", ())))
    # Column by column: all of a table would be an array of objects, where there are numbers and texts.
    columns = [rows.iloc[:, place] for place in range(len(names))] if 0 < len(names) <= MOST_COLUMNS else [rows]
    index = getattr(getattr(rows, "index", None), "to_numpy", list)
    return repr((getattr(value, "shape", ()), names)), [*(np.asarray(each.to_numpy()) for each in columns), index()]


def _polars(value: Any, places: int) -> tuple[str, Any] | None:
    if not hasattr(value, "gather_every") or hasattr(value, "collect"):  # what is only planned
        return None
    columns = getattr(value, "columns", ())
    rows = value.gather_every(max(len(value) * max(len(columns), 1) // places, 1))
    return repr((value.shape, columns)), rows.rows() if columns else rows.to_list()


def _arrow(value: Any, places: int) -> tuple[str, Any] | None:
    if not hasattr(value, "slice") or not hasattr(value, "nbytes"):
        return None
    names = list(getattr(value, "column_names", ()))
    count = len(value)
    most = min(
        MOST_ROWS // max(len(names), 1), places // max(len(names), 1), MOST_BYTES * count // max(value.nbytes, 1)
    )
    # Not `take`, which may copy a column of many parts whole.
    rows = [value.slice(place, 1).to_pylist()[0] for place in range(0, count, max(count // max(most, FEWEST_ROWS), 1))]
    return repr((count, names)), rows


def _hugging_face(value: Any, places: int) -> tuple[str, Any] | None:
    table = getattr(value, "table", None)
    return None if table is None else looked_at(table, places)


_OF: dict[str, Callable[[Any, int], tuple[str, Any] | None]] = {
    "pandas": _pandas,
    "polars": _polars,
    "pyarrow": _arrow,
    "datasets": _hugging_face,
}
