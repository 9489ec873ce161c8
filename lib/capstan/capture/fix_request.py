"""The request to repair records of `late`, checked without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field

from capstan.core.config.sql_rules import problem_with_columns
from capstan.errors import InvalidRequestError
from capstan.storage.late.late_rows import LateSelection


@dataclass(frozen=True, slots=True)
class Fix:
    """Records of `late` with one reason to repair, by whom, and how; checked.

    `select` has SQL over the columns of `late` that makes columns of the stream, each as
    `EXPRESSION AS COLUMN`; a record keeps what it has in the others. With `dry_run`, nothing is
    written.
    """

    by: str
    select: tuple[str, ...]
    selection: LateSelection = field(default_factory=LateSelection)
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.selection.reason is None:
            # Others have no text in `raw`, or nothing wrong in the columns that it repairs.
            raise InvalidRequestError(
                "CAP-REQUEST",
                "a fix is of records with one reason, and none is given",
                "name it, with --reason REASON; `capstan late STREAM` lists the reasons",
            )
        for sql in self.select:
            problem = problem_with_columns(sql)
            if problem is not None:
                raise InvalidRequestError(
                    "CAP-SELECT",
                    f"the fix {sql[:200]!r} {problem}",
                    "write EXPRESSION AS COLUMN, over the columns of the table `late`",
                )
