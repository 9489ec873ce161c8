"""Delta's statistics of a file that has the rows of several others, by the statistics of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from math import isfinite
from typing import Any

Entry = Mapping[str, Any]
"""A file in the log of a table, of `get_add_actions`."""


def merged_statistics(files: Sequence[Entry]) -> dict[str, object]:
    """The statistics of a file with the rows of some files.

    A column has bounds only if each file with a value of it has some.
    """
    nulls = [file.get("null_count") for file in files]
    rows = [file["num_records"] for file in files]
    return {
        "numRecords": sum(rows),
        "minValues": _merged([file.get("min") for file in files], nulls, rows, min) or {},
        "maxValues": _merged([file.get("max") for file in files], nulls, rows, max) or {},
        "nullCount": _merged(nulls, nulls, [None] * len(files), sum) or {},
    }


def _merged(
    values: Sequence[Any],
    nulls: Sequence[Any],
    rows: Sequence[int | None],
    choose: Callable[[Sequence[Any]], Any],
) -> object:
    """The value of a column, or of the fields of a struct, over all files; None if unknown."""
    fields = sorted({name for value in values if isinstance(value, dict) for name in value})
    if fields:
        merged = {
            name: _merged(_field(values, name), _field(nulls, name), rows, choose)
            for name in fields
        }
        return {name: value for name, value in merged.items() if value is not None}
    # A file with nulls alone has no bounds.
    known = [
        value
        for value, count, total in zip(values, nulls, rows, strict=True)
        if value is not None or count is None or count != total
    ]
    return None if not known or None in known else _text(choose(known))


def _field(values: Sequence[Any], name: str) -> list[Any]:
    return [value.get(name) if isinstance(value, dict) else None for value in values]


def _text(value: Any) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bool | int | str) or (isinstance(value, float) and isfinite(value)):
        return value
    return None
