"""Errors of sources, mapped from the error conditions of Spark, Delta and Kafka.

An error of a streaming query is a page of text that contains the condition of its cause, such as
`[DELTA_SOURCE_TABLE_IGNORE_CHANGES]`, and ends with advice about Spark's own options. Here each
condition gets a code, one sentence, and a remedy in terms of Capstan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException

from capstan.errors import InvalidRequestError, SystemFailureError, translation

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]{5,}(?:\.[A-Z0-9_]+)?)\]\s*")
# Kafka's connector omits its own condition from its message.
_DATA_LOSS = re.compile(
    r"Some data may have been lost because they are not available in Kafka.*?Reason:\s*", re.DOTALL
)
# Signs of an unreachable broker in the errors of Kafka's clients, however deeply nested.
_BROKER_ERRORS = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.KafkaException",
    "waiting for a node assignment",
)
# Of Spark's source of files, without a condition: it takes up again what it has read before.
_MOVED = re.compile(r"Wrong basePath (\S+) for the root path: (\S+?)[.,;]?(?:\s|$)")
_LONGEST = 200
_RESEAT = (
    "`capstan capture {stream} --reseat` continues with its present content, as new micro-batches"
)


@dataclass(frozen=True, slots=True)
class _Problem:
    """The Capstan error for a set of conditions."""

    code: str
    message: str
    hint: str
    conditions: tuple[str, ...]


_TABLE = (
    _Problem(
        "CAP-SOURCE-CHANGED",
        "rows of the source table were changed or deleted, but a capture only reads added rows",
        "set source.options: skipChangeCommits: 'true' skips such commits, readChangeFeed: 'true' "
        "captures the changes as rows; then run again",
        ("DELTA_SOURCE_TABLE_IGNORE_CHANGES", "DELTA_SOURCE_IGNORE_DELETE"),
    ),
    _Problem(
        "CAP-SOURCE-OTHER",
        "the source table was recreated and is not the one captured so far",
        _RESEAT,
        ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
    ),
    _Problem(
        "CAP-SOURCE-LOST",
        "the source no longer has the records that followed the last capture",
        _RESEAT + "; the lost records are on no tape",
        (
            "KAFKA_DATA_LOSS",
            "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
            "DELTA_STREAMING_TRAILING_COMMIT_MISSING",
        ),
    ),
    _Problem(
        "CAP-SOURCE-LOST",
        "the source does not have this version, or no longer has it",
        "check source.options.startingVersion if it is set; otherwise " + _RESEAT,
        ("DELTA_VERSION_NOT_FOUND",),
    ),
    _Problem(
        "CAP-SCHEMA",
        "columns of the source were renamed or dropped, or have another type",
        "a stream may only gain columns: capture the new schema as a separate stream",
        (
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG",
            "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION",
            "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH",
            "CANNOT_MERGE_SCHEMAS",
        ),
    ),
    _Problem(
        "CAP-MALFORMED",
        "a record of the source does not match its columns, and mode is FAILFAST",
        "correct the record, or remove source.options.mode; then run again",
        ("MALFORMED_RECORD_IN_PARSING", "MALFORMED_CSV_RECORD", "CANNOT_PARSE_JSON_FIELD"),
    ),
    _Problem(
        "CAP-SOURCE",
        "the source rejects its options",
        "check source.options in streams.yaml",
        ("INVALID_TIMEZONE", "INVALID_DATETIME_PATTERN", "INCONSISTENT_BEHAVIOR_CROSS_VERSION"),
    ),
)
_BY_CONDITION = {condition: problem for problem in _TABLE for condition in problem.conditions}


def source_error(stream: str, error: BaseException) -> InvalidRequestError | None:
    """The Capstan error for a known condition of a stream's source; None without one."""
    for name, detail in _conditions(str(error)):
        problem = _BY_CONDITION.get(name) or _BY_CONDITION.get(name.partition(".")[0])
        if problem is not None:
            return InvalidRequestError(
                problem.code,
                f"stream {stream}: {problem.message} ({name}: {detail})",
                problem.hint.format(stream=stream),
                stream=stream,
                condition=name,
            )
    return None


def broker_gone(stream: str, error: Exception) -> SystemFailureError | None:
    """The error for a broker that does not answer; None for any other error."""
    text = str(error)
    if not any(sign in text for sign in _BROKER_ERRORS):
        return None
    reason = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return SystemFailureError(
        "CAP-BROKER",
        f"stream {stream}: the broker does not answer: {reason}",
        "check that it is running, and source.options in streams.yaml; then run again",
        stream=stream,
    )


def source_moved(stream: str, error: Exception) -> InvalidRequestError | None:
    """The error for files that are not where they were captured, as in a copied lake; else None."""
    found = _MOVED.search(str(error))
    if found is None:
        return None
    return moved(stream, *(path.removeprefix("file:") for path in found.groups()))


def moved(stream: str, now: str, before: str) -> InvalidRequestError:
    """The error for a source that is looked for in another place than it was captured from."""
    return InvalidRequestError(
        "CAP-SOURCE-MOVED",
        f"stream {stream}: its files are looked for in {now}, and were captured from {before}",
        "a capture goes on where its files were, also in a copied lake: give that folder as "
        "source.path in streams.yaml, with a link from there if the files were moved; or capture "
        f"the present one as a stream of another name. {_RESEAT.format(stream=stream)}, also what "
        "is on tape",
        stream=stream,
        path=now,
        former=before,
    )


def options_refused(stream: str, error: StreamingQueryException) -> InvalidRequestError | None:
    """The error for options that a source rejects; None for any other error."""
    # Errors of the batch callback come from Python and have another cause.
    cause = getattr(error, "_cause", None)
    if not isinstance(cause, IllegalArgumentException | AnalysisException):
        return None
    return InvalidRequestError(
        "CAP-SOURCE",
        f"stream {stream}: the source rejects its options: {translation.root_message(cause)}",
        "check source.options in streams.yaml",
        stream=stream,
    )


def query_refused(stream: str, error: AnalysisException) -> InvalidRequestError:
    """The error for a streaming frame that Spark cannot run as it is."""
    return InvalidRequestError(
        "CAP-SOURCE",
        f"stream {stream}: Spark cannot run the source's query: {translation.root_message(error)}",
        "check source in streams.yaml",
        stream=stream,
    )


def file_damaged(stream: str, tape: str, error: Exception) -> SystemFailureError | None:
    """The error for a missing or truncated file of the source, not of its tape; else None."""
    translated = translation.translate(error)
    if translated is None or translated.code != "CAP-DAMAGED":
        return None
    path = str(translated.fields.get("path", ""))
    if not path or path.startswith(tape):
        return None
    return SystemFailureError(
        "CAP-DAMAGED",
        f"stream {stream}: a file of the source cannot be read: {path}",
        "restore it under the same name; or remove it if it does not belong to the stream "
        "(source.options: pathGlobFilter excludes such names); then run again",
        stream=stream,
        path=path,
    )


def _conditions(text: str) -> Iterator[tuple[str, str]]:
    """The conditions in a message, each with the line that follows it."""
    for match in _CONDITION.finditer(text):
        yield match[1], _line(text, match.end())
    if lost := _DATA_LOSS.search(text):
        yield "KAFKA_DATA_LOSS", _line(text, lost.end())


def _line(text: str, start: int) -> str:
    return text[start:].strip().partition("\n")[0][:_LONGEST]
