"""Errors of sources, told from the conditions by which Spark, Delta and Kafka name them.

An error of a streaming query is a page that carries the condition of its cause: `[DELTA_SOURCE_
TABLE_IGNORE_CHANGES] ...`. What follows it is long, and ends with advice about Spark's own options;
here each condition has a code, one sentence, and what to do with Capstan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from capstan.errors import InvalidRequestError

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]{5,}(?:\.[A-Z0-9_]+)?)\]\s*")
# Kafka's connector leaves its own condition out of what it says.
_DATA_LOSS = re.compile(
    r"Some data may have been lost because they are not available in Kafka.*?Reason:\s*", re.DOTALL
)
_LONGEST = 200
_RESEAT = "`capstan capture {stream} --reseat` goes on with what it has now, as new micro-batches"


@dataclass(frozen=True, slots=True)
class _Told:
    """What is said of some conditions."""

    code: str
    what: str
    hint: str
    conditions: tuple[str, ...]


_TABLE = (
    _Told(
        "CAP-SOURCE-CHANGED",
        "rows of the source table were changed or deleted, and a capture reads what is added",
        "give source.options: skipChangeCommits: 'true' leaves such commits out, readChangeFeed: "
        "'true' captures the changes as rows; then run the same again",
        ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE"),
    ),
    _Told(
        "CAP-SOURCE-OTHER",
        "the source table was made again, and is another one than was captured so far",
        _RESEAT,
        ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
    ),
    _Told(
        "CAP-SOURCE-LOST",
        "the source no longer has what came after the last capture",
        _RESEAT + "; what is lost is on no tape",
        (
            "KAFKA_DATA_LOSS",
            "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
            "DELTA_STREAMING_TRAILING_COMMIT_MISSING",
        ),
    ),
    _Told(
        "CAP-SOURCE-LOST",
        "the source has no such version, or has it no longer",
        "see source.options.startingVersion, where it is given; else " + _RESEAT,
        ("DELTA_VERSION_NOT_FOUND",),
    ),
    _Told(
        "CAP-SCHEMA",
        "columns of the source were renamed or dropped, or have another type",
        "a stream may only gain columns: capture the new shape as a stream of its own",
        (
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG",
            "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",
            "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH",
            "CANNOT_MERGE_SCHEMAS",
        ),
    ),
    _Told(
        "CAP-MALFORMED",
        "a record of the source cannot be read as its columns say, and mode is FAILFAST",
        "mend the record; or leave out source.options.mode; then run the same again",
        ("MALFORMED_RECORD_IN_PARSING", "MALFORMED_CSV_RECORD", "CANNOT_PARSE_JSON_FIELD"),
    ),
)
_BY_CONDITION = {condition: told for told in _TABLE for condition in told.conditions}


def source_error(stream: str, error: BaseException) -> InvalidRequestError | None:
    """The error that stands for a condition of a stream's source; None for one that is not known.

    Args:
        stream: The stream.
        error: What its query ended with.
    """
    for name, said in _conditions(str(error)):
        told = _BY_CONDITION.get(name) or _BY_CONDITION.get(name.partition(".")[0])
        if told is not None:
            return InvalidRequestError(
                told.code,
                f"stream {stream}: {told.what} ({name}: {said})",
                told.hint.format(stream=stream),
                stream=stream,
                condition=name,
            )
    return None


def _conditions(text: str) -> Iterator[tuple[str, str]]:
    """The conditions that a message names, each with the line that follows it."""
    for found in _CONDITION.finditer(text):
        yield found[1], _line(text, found.end())
    if lost := _DATA_LOSS.search(text):
        yield "KAFKA_DATA_LOSS", _line(text, lost.end())


def _line(text: str, start: int) -> str:
    return text[start:].strip().partition("\n")[0][:_LONGEST]
