"""Translation of Delta's constraint violations."""

from __future__ import annotations

import re

from capstan.errors import CheckFailedError

_RULES = {
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES": "",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED": "",
    "DELTA_MISSING_NOT_NULL_COLUMN_VALUE": "",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT": "",
    "DELTA_CANNOT_MODIFY_APPEND_ONLY": "the table only accepts appends (delta.appendOnly)",
}
_MESSAGE = re.compile(
    rf"\[(?P<condition>{'|'.join(_RULES)})\]\s*(?P<text>[^\n]*(?:\n - [^\n]*)*)",
)
# Delta checks the range of a replacement by an anonymous constraint.
_RANGE_CHECK = "CHECK constraint EXPRESSION("
_MAX_LENGTH = 300


def constraint_error(error: BaseException, path: str) -> CheckFailedError | None:
    """Translate an error into a constraint violation, if it is one.

    Args:
        error: The exception of a Spark write; it may be wrapped in others.

    Returns:
        `CAP-CONSTRAINT` with the constraint or column; None for all other errors, and for rows
        outside the range of a replacement.
    """
    match = _MESSAGE.search(str(error))
    if match is None or match["text"].startswith(_RANGE_CHECK):
        return None
    text = " ".join((_RULES[match["condition"]] or match["text"]).split()).rstrip(".")
    return CheckFailedError(
        "CAP-CONSTRAINT",
        f"the table at {path} rejects the rows: {text[:_MAX_LENGTH]}; nothing was written",
        "correct the rows in the source or by a transform; or change the table's constraints",
        path=path,
        condition=match["condition"],
    )
