"""JSON of values that others wrote, as text that can be written down."""

from __future__ import annotations

import json


def json_text(value: object, *, allow_nan: bool = True) -> str:
    """JSON without blanks, whose characters stand for themselves where UTF-8 has them.

    Raises:
        TypeError: JSON has no such value.
        ValueError: Without `allow_nan`: a number that is not one; or a value within itself.
        RecursionError: It is too deep.
    """

    def text(*, ascii_only: bool) -> str:
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=allow_nan
        )

    try:
        plain = text(ascii_only=False)
        plain.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair is JSON, but only with its escape.
        return text(ascii_only=True)
    return plain
