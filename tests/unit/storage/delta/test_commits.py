"""Rules of a table that rows break, told from what Delta says of them."""

from __future__ import annotations

import pytest

from capstan.storage.delta.commits import constraint_error

WRAPPED = (
    "[DELTA_REPLACE_WHERE_MISMATCH] Written data does not conform to partial table overwrite "
    "condition or constraint 'id < 5'.\n"
)
CALLED = (
    "An error occurred while calling o142.save.\n"
    ": org.apache.spark.sql.delta.schema.DeltaInvariantViolationException: "
)
TAIL = "\n\tat org.apache.spark.sql.delta.schema.DeltaInvariantViolationException$.apply(I.scala:1)"


@pytest.mark.parametrize("before", [WRAPPED, CALLED])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            (
                "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint small (amount < 10) "
                "violated by row with values:\n - amount : 12\n - id : 1"
            ),
            (
                "CHECK constraint small (amount < 10) violated by row with values: - amount : 12 "
                "- id : 1"
            ),
        ),
        (
            (
                "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint Generated Column (g "
                "<=> (amount + 1)) violated by row with values:\n - g : 7"
            ),
            (
                "CHECK constraint Generated Column (g <=> (amount + 1)) violated by row with "
                "values: - g : 7"
            ),
        ),
        (
            "[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: amount.",
            "NOT NULL constraint violated for column: amount",
        ),
        (
            (
                "[DELTA_MISSING_NOT_NULL_COLUMN_VALUE] Column amount, which has a NOT NULL "
                "constraint, is missing from the data being written into the table."
            ),
            (
                "Column amount, which has a NOT NULL constraint, is missing from the data being "
                "written into the table"
            ),
        ),
        (
            (
                '[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "abc" exceeds char/varchar type length '
                "limitation. Failed check: ((s IS NULL) OR (length(s) <= 2))."
            ),
            (
                'Value "abc" exceeds char/varchar type length limitation. Failed '
                "check: ((s IS NULL) OR (length(s) <= 2))"
            ),
        ),
        (
            (
                "[DELTA_CANNOT_MODIFY_APPEND_ONLY] This table is configured to only allow appends. "
                "If you would like to permit updates or deletes, use 'ALTER TABLE null'."
            ),
            "the table only accepts appends (delta.appendOnly)",
        ),
    ],
)
def test_the_rule_is_named(before: str, text: str, said: str) -> None:
    actual = constraint_error(Exception(before + text + TAIL), "/lake/t")
    assert actual is not None
    assert str(actual) == (
        f"CAP-CONSTRAINT: the table at /lake/t rejects the rows: {said}; nothing was written"
    )


@pytest.mark.parametrize(
    "text",
    [
        WRAPPED + "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint EXPRESSION(('id < 2)) "
        "(id < 2) violated by row with values:\n - id : 2",
        "[DELTA_CONCURRENT_APPEND] another one was first",
        "something else",
    ],
)
def test_what_is_no_rule_of_the_table_is_left_to_others(text: str) -> None:
    assert constraint_error(Exception(text), "/lake/t") is None
