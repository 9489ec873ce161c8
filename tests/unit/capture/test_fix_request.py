"""Requests to repair records of `late`: what is refused before Spark starts."""

from __future__ import annotations

import pytest

from capstan.capture.fix_request import Fix
from capstan.errors import InvalidRequestError
from capstan.storage.late.late_rows import LateSelection


@pytest.mark.parametrize(
    ("select", "reason", "problem"),
    [
        ("raw AS a", None, "CAP-REQUEST.*one reason"),
        ("", "malformed", "CAP-SELECT.*is empty"),
        ("SELECT raw AS a", "malformed", "CAP-SELECT.*starts with SELECT"),
        ("(SELECT max(a) FROM t) AS a", "malformed", "CAP-SELECT.*subquery"),
        ("reflect('java.lang.System', 'exit', 1) AS a", "malformed", "CAP-SELECT.*calls reflect"),
        ("`java_method`('a', 'b') AS a", "malformed", "CAP-SELECT.*calls java_method"),
        ("uuid() AS a", "malformed", "CAP-SELECT.*calls uuid"),
        ("raw AS a; DROP TABLE t", "malformed", "CAP-SELECT.*';'"),
    ],
)
def test_what_is_no_repeatable_expression_is_refused(
    select: str, reason: str | None, problem: str
) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        Fix("ann", ("upper(raw) AS b", select), LateSelection(reason))
