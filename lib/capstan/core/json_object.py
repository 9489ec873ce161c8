"""JSON objects, and their text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
"""A JSON object, as stored or printed."""


def printed_json(value: object) -> str:
    """`value` as JSON in ASCII, which every terminal encoding can show."""
    return json.dumps(_plain(value))


def _plain(value: object) -> object:
    """`value` in JSON's types; numbers that JSON lacks (NaN, infinity) become text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
