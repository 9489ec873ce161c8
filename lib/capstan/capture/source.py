"""The source of a stream, as Structured Streaming reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, IllegalArgumentException, StreamingQueryException
from pyspark.sql.types import StructType

from capstan import error_translation
from capstan.capture import raw_text
from capstan.capture.file_listing import FILES, Listing
from capstan.capture.path_patterns import is_glob
from capstan.core.config import Source, Stream
from capstan.errors import CapstanError, InvalidRequestError, SystemFailureError
from capstan.spark.jars import kafka_jars, s3_jars
from capstan.storage.lake import exists

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# What the errors of Kafka's clients say, however deep they lie.
_GONE = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.KafkaException",
    "waiting for a node assignment",
)


# Spark passes over files that were changed more than a week before the newest one.
_ANY_AGE = "1000000d"


def read_source(
    spark: SparkSession,
    stream: Stream,
    listing: Listing | None = None,
    columns: StructType | None = None,
    known: StructType | None = None,
) -> DataFrame:
    """The declared source as a streaming frame: its columns, and of text `raw_text.COLUMN` beside.

    Args:
        spark: The session.
        stream: The declaration.
        listing: The files of the source, where they could be listed.
        columns: Its columns, where they are known.
        known: Those that are on tape; None before the first capture.

    Raises:
        InvalidRequestError: `CAP-SOURCE` when it is not there or Spark cannot read it.
        SystemFailureError: `CAP-DAMAGED`, `CAP-NO-ACCESS` where a file of it, or of its log, cannot
            be read.
    """
    source = stream.source
    try:
        _require_place(stream, listing)
        if source.format == "kafka":
            # All that a topic has is the stream, not what comes from now on.
            options = {"startingOffsets": "earliest", **source.options}
            return spark.readStream.format("kafka").options(**options).load()
        options = options_of(source, listing)
        reader = spark.readStream.format(source.format).options(**options)
        wanted = columns or (source.schema and StructType.fromDDL(source.schema))
        if wanted is None and source.format not in ("delta", "rate"):
            # Streams of files must be told their columns; the files know them.
            files = spark.read.format(source.format).options(**options)
            wanted = raw_text.of_others(files.load(source.path).schema, known)
            if source.format.lower() != "csv" and known is not None:
                wanted = after(known, wanted)
        if wanted is not None:
            assert isinstance(wanted, StructType)
            text = raw_text.Text.of(source, listing, wanted)
            if text is not None:
                return text.told(reader.schema(text.schema).load(source.path))
            reader = reader.schema(wanted)
        return reader.load(source.path)
    except CapstanError:
        raise
    except Exception as error:
        foreseen = error_translation.translate(error)
        if foreseen is not None:
            raise foreseen from error
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: the source cannot be read: "
            f"{error_translation.root_message(error)}",
            _missing(source) or "check source in streams.yaml",
            stream=stream.name,
        ) from error


def _require_place(stream: Stream, listing: Listing | None) -> None:
    """Check that there is something at a path of this machine; a pattern may stand for nothing."""
    path = stream.source.path
    if path is None or "://" in path or (is_glob(path) and not exists(path)):
        return
    if not is_glob(path) and not exists(path):
        what, hint = f"there is nothing at {path}", "check source.path in streams.yaml"
    elif is_glob(path) and listing is not None and not listing.files:
        what = f"there is {path}, which Spark takes for a pattern"
        hint = "write a backslash before each of *?[]{} in source.path that is meant as it stands"
    else:
        return
    raise InvalidRequestError(
        "CAP-SOURCE", f"stream {stream.name}: {what}", hint, stream=stream.name
    )


def after(known: StructType, inferred: StructType) -> StructType:
    """The columns of records that tell them by name: those on tape, then what has come besides.

    Spark has those of JSON in the order of their names, and knows none that no file has any more.
    """
    now = {field.name.lower(): field for field in inferred.fields}
    first = [now.pop(field.name.lower(), field) for field in known.fields]
    return StructType([*first, *now.values()])


def options_of(source: Source, listing: Listing | None) -> dict[str, str]:
    """The options that a source is read with: those that are declared, and how files are found.

    A file is read however old it is, and however deep it lies. Where folders are named as
    partitions are (`day=2024-05-01`) Spark takes columns from the names instead.
    """
    if source.format.lower() not in FILES:
        return dict(source.options)
    usual = {"maxFileAge": _ANY_AGE}
    if listing is not None:
        usual["recursiveFileLookup"] = "false" if listing.partitioned else "true"
    declared = {name.lower() for name in source.options}
    return {**{k: v for k, v in usual.items() if k.lower() not in declared}, **source.options}


def file_path(rows: DataFrame) -> Column:
    """The URI of the file that a row of a source is from; also beside a column `_metadata`."""
    return rows.metadataColumn("_metadata").getField("file_path")


def _missing(source: Source) -> str:
    """What is to be fetched before such a source can be read; empty where nothing lacks."""
    if source.format == "kafka" and not kafka_jars():
        return "run `make kafka` first"
    on_s3 = source.path is not None and source.path.startswith("s3a://")
    return "run `make s3` first" if on_s3 and not s3_jars() else ""


def broker_gone(stream: str, error: Exception) -> SystemFailureError | None:
    """The error for a broker that does not answer; None for an error of another kind."""
    text = str(error)
    if not any(sign in text for sign in _GONE):
        return None
    reason = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return SystemFailureError(
        "CAP-BROKER",
        f"stream {stream}: the broker does not answer: {reason}",
        "see whether it runs, and source.options in streams.yaml; then run the same again",
        stream=stream,
    )


def options_refused(stream: str, error: StreamingQueryException) -> InvalidRequestError | None:
    """The error for options that a source does not know or take; None for any other error."""
    # What a batch does with the rows is raised in Python, and so has another cause.
    cause = getattr(error, "_cause", None)
    if not isinstance(cause, IllegalArgumentException | AnalysisException):
        return None
    return InvalidRequestError(
        "CAP-SOURCE",
        f"stream {stream}: the source refuses its options: {error_translation.root_message(cause)}",
        "check source.options in streams.yaml",
        stream=stream,
    )


def file_damaged(stream: str, tape: str, error: Exception) -> SystemFailureError | None:
    """The error for a file of the source that is gone or cut short; None for any other error.

    Args:
        stream: The stream.
        tape: The folder of its tape, whose own files are no source.
        error: What the query ended with.
    """
    found = error_translation.translate(error)
    path = str(found.fields.get("path", "")) if found is not None else ""
    if found is None or found.code != "CAP-DAMAGED" or not path or path.startswith(tape):
        return None
    return SystemFailureError(
        found.code,
        f"stream {stream}: a file of the source cannot be read: {path}",
        "put it back whole, under the same name; or take it away, if it is none of the stream's "
        "(source.options: pathGlobFilter leaves out such names); then run the same again",
        stream=stream,
        path=path,
    )
