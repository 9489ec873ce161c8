"""JSON text of foreign values that can always be encoded as UTF-8."""

from __future__ import annotations

import json


def json_text(value: object, *, allow_nan: bool = True) -> str:
    """Compact JSON, with non-ASCII characters as themselves if UTF-8 can encode them.

    Raises:
        TypeError: When JSON has no such value.
        ValueError: For NaN or infinity without `allow_nan`, and for a circular value.
        RecursionError: When the value is nested too deeply.
    """

    def text(*, ascii_only: bool) -> str:
        return json.dumps(
            value, separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=allow_nan
        )

    try:
        plain = text(ascii_only=False)
        plain.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair is valid in JSON only as an escape.
        return text(ascii_only=True)
    return plain
