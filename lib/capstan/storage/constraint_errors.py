"""Why a table refuses rows: the rules that its owner has given it, told from Delta's conditions."""

from __future__ import annotations

import re

from capstan.errors import CheckFailedError

_RULES = {
    "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES": "",
    "DELTA_NOT_NULL_CONSTRAINT_VIOLATED": "",
    "DELTA_MISSING_NOT_NULL_COLUMN_VALUE": "",
    "DELTA_EXCEED_CHAR_VARCHAR_LIMIT": "",
    "DELTA_CANNOT_MODIFY_APPEND_ONLY": "the table takes appended rows alone (delta.appendOnly)",
}
_SAID = re.compile(
    rf"\[(?P<condition>{'|'.join(_RULES)})\]\s*(?P<what>[^\n]*(?:\n - [^\n]*)*)",
)
# Delta holds a replacement to its own range by a constraint that has no other name.
_OF_RANGE = "CHECK constraint EXPRESSION("
_LONGEST = 300


def refusal(error: BaseException, path: str) -> CheckFailedError | None:
    """The error of rows that break a rule of the table that they are written to, if it is one.

    Args:
        error: Of a write by Spark; it may be wrapped in others.
        path: The table.

    Returns:
        `CAP-CONSTRAINT`, with the constraint or the column; None for every other error, and for
        rows outside of the range that a replacement is of.
    """
    said = _SAID.search(str(error))
    if said is None or said["what"].startswith(_OF_RANGE):
        return None
    what = " ".join((_RULES[said["condition"]] or said["what"]).split()).rstrip(".")
    return CheckFailedError(
        "CAP-CONSTRAINT",
        f"the table at {path} refuses the rows: {what[:_LONGEST]}; nothing was written",
        "mend the rows where they come from, or by a transform; or change the rules of the table",
        path=path,
        condition=said["condition"],
    )
