"""The source of a stream as a Structured Streaming frame."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import IllegalArgumentException
from pyspark.sql.types import StructType

from capstan.capture.source.files.listing import FILES, FilesRead, SourceListing
from capstan.capture.source.files.path_patterns import is_glob
from capstan.capture.source.files.schemas import declared_columns
from capstan.capture.source.table_or_function import call_source, read_table
from capstan.capture.source.text import raw_text
from capstan.core.config import Source, Stream
from capstan.errors import CapstanError, InvalidRequestError, translation
from capstan.spark.project_home import set_up
from capstan.spark.setup import jars
from capstan.storage.lake import exists

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

# By default Spark skips files that are a week older than the newest one.
_ANY_AGE = "1000000d"


def read_source(
    spark: SparkSession,
    stream: Stream,
    listing: SourceListing | None = None,
    columns: StructType | None = None,
    known: StructType | None = None,
    *,
    as_text: bool = False,
) -> DataFrame:
    """The declared source as a streaming frame, with `raw_text.COLUMN` for sources of text.

    `known` are the columns on tape, None before the first capture; `as_text`: see `line_checks`.
    """
    source = stream.source
    if source.function is not None:
        return call_source(spark, stream)
    with _readable(stream):
        _require_place(stream, listing)
        raw_text.require_options(stream)
        if source.table is not None:
            return read_table(spark, stream)
        if source.format == "kafka":
            # The stream is the whole topic, not only new records.
            options = {"startingOffsets": "earliest", **source.options}
            return spark.readStream.format("kafka").options(**options).load()
        options = options_of(source, listing)
        reader = spark.readStream.format(source.format).options(**options)
        schema = columns or declared_columns(stream)
        if schema is None and source.format.lower() not in FILES:
            frame = _with_own_columns(reader, source)
            if frame is not None:
                return frame
        if schema is None:
            # Spark requires explicit columns for streams of files; the files have them.
            files = spark.read.format(source.format).options(**options)
            schema = raw_text.without_corrupt_record(files.load(source.path).schema, known)
            if source.format.lower() != "csv" and known is not None:
                schema = in_tape_order(known, schema)
        return raw_text.load(reader, source, listing, schema, as_text=as_text)


@contextmanager
def _readable(stream: Stream) -> Iterator[None]:
    """Raise what Spark says about a source as an error of the stream."""
    try:
        yield
    except CapstanError:
        raise
    except Exception as error:
        raise translation.translate(error) or InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: the source cannot be read: {translation.root_message(error)}",
            _setup_hint(stream.source) or "check source in streams.yaml",
            stream=stream.name,
        ) from error


def _with_own_columns(reader: DataStreamReader, source: Source) -> DataFrame | None:
    """The rows of a source that knows its columns; None for a format of files that is not known."""
    try:
        return reader.load(source.path)
    except IllegalArgumentException as error:
        if "chema must be specified" in str(error):
            return None
        raise


def require_match(stream: Stream, listing: SourceListing, seen: FilesRead) -> None:
    """Check that a path with wildcards has matched a file, now or before."""
    path = stream.source.path
    if listing.rule is None or listing.files or seen or path is None or exists(path):
        return
    raise InvalidRequestError(
        "CAP-SOURCE",
        f"stream {stream.name}: {path} matches no file",
        "check source.path in streams.yaml; * and ? match within the name of one folder or file",
        stream=stream.name,
    )


def _require_place(stream: Stream, listing: SourceListing | None) -> None:
    """Check that a local path exists; a pattern may match nothing."""
    path = stream.source.path
    if path is None or "://" in path or (is_glob(path) and not exists(path)):
        return
    if not is_glob(path) and not exists(path):
        problem, hint = f"{path} does not exist", "check source.path in streams.yaml"
    elif is_glob(path) and listing is not None and not listing.files:
        problem = f"{path} exists, but Spark reads it as a pattern"
        hint = "write a backslash before each literal *?[]{} in source.path"
    else:
        return
    raise InvalidRequestError(
        "CAP-SOURCE", f"stream {stream.name}: {problem}", hint, stream=stream.name
    )


def in_tape_order(known: StructType, inferred: StructType) -> StructType:
    """The columns of records with named fields: those on tape, then the additional ones."""
    # Spark infers JSON columns in alphabetical order, without those that no file has any more.
    added = {field.name.lower(): field for field in inferred.fields}
    first = [added.pop(field.name.lower(), field) for field in known.fields]
    return StructType([*first, *added.values()])


def options_of(source: Source, listing: SourceListing | None) -> dict[str, str]:
    """The options for reading a source: the declared ones, and how files are found."""
    # Files are read at any age and any depth. With folders named like partitions (`day=2024-05-01`)
    # Spark takes columns from the names instead.
    if source.format.lower() not in FILES:
        return dict(source.options)
    defaults = {"maxFileAge": _ANY_AGE}
    if listing is not None:
        defaults["recursiveFileLookup"] = "false" if listing.partitioned else "true"
    declared = {name.lower() for name in source.options}
    return {**{k: v for k, v in defaults.items() if k.lower() not in declared}, **source.options}


def file_path(rows: DataFrame) -> Column:
    """The URI of the file of each source row, even if the source has a column `_metadata`."""
    return rows.metadataColumn("_metadata").getField("file_path")


def _setup_hint(source: Source) -> str:
    """The command that fetches jars missing for a source; empty if none are missing."""
    if source.format == "kafka" and not jars.KAFKA.fetched():
        return f"run {set_up('kafka')} first"
    if source.format == "avro" and not jars.AVRO.fetched():
        return f"run {set_up('avro')} first"
    on_s3 = source.path is not None and source.path.startswith(("s3://", "s3a://"))
    return f"run {set_up('s3')} first" if on_s3 and not jars.S3.fetched() else ""
