"""Columns that order the changes of a key, and the kinds by which text becomes an order.

Numbers, dates and times have an order of their own. Text has none: of `9` and `10`, text says that
`9` is later. So a column of text is declared with what it holds, and compared as that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from capstan.core.config.names import check_column, did_you_mean, one_of

_TEXT = re.compile(r"(?P<column>\S+)(?:\s+as\s+(?P<kind>\S+))?", re.IGNORECASE)


class SequenceKind(StrEnum):
    """What a column of text holds, and so how it is compared."""

    NUMBER = "number"
    """Digits with an optional sign and fraction: at most 28 before the point and 10 after it."""
    VERSION = "version"
    """Numbers with dots between them; `1.2` and `1.2.0` are the same version."""
    TIME = "time"
    """A moment, read as `time.column` of a stream reads it."""
    BINLOG = "binlog"
    """A log file of MySQL by the number at its end, perhaps with a position: `binlog.000042:157`.

    The name before the number is not compared.
    """


KINDS = tuple(map(str, SequenceKind))


@dataclass(frozen=True, slots=True)
class SequenceColumn:
    """A column that orders changes of a key; `kind` is what text in it holds, else None."""

    column: str
    kind: SequenceKind | None = None

    @classmethod
    def of(cls, text: str) -> SequenceColumn:
        """The column that a text such as `version as number` names."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            return cls(check_column(text))
        kind = match["kind"]
        if kind is not None and kind not in KINDS:
            guess = did_you_mean(kind, KINDS)
            raise ValueError(f"{text!r} names no kind of order{guess}; kinds are {one_of(KINDS)}")
        return cls(check_column(match["column"]), None if kind is None else SequenceKind(kind))

    def __str__(self) -> str:
        return self.column if self.kind is None else f"{self.column} as {self.kind}"


def sequence_text(value: object) -> object:
    """The text of a column that is given as a mapping, `{column: version, as: number}`."""
    if not isinstance(value, Mapping):
        return value
    if set(value) - {"column", "as"} or "column" not in value:
        raise ValueError(f"has the keys {', '.join(map(str, value))}; give column and as")
    kind = value.get("as")
    return str(value["column"]) if kind is None else f"{value['column']} as {kind}"
