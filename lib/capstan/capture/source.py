"""The source of a stream, as Structured Streaming reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan import breakage
from capstan.declare import Source, Stream
from capstan.errors import BadRequest, Broken, CapstanError
from capstan.runtime.jars import kafka_jars, s3_jars
from capstan.tape.lake import exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# What the errors of Kafka's clients say, however deep they lie.
_GONE = (
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.KafkaException",
    "waiting for a node assignment",
)


def read_source(spark: SparkSession, stream: Stream) -> DataFrame:
    """The declared source as a streaming frame.

    Raises:
        BadRequest: `CAP-SOURCE` when it is not there or Spark cannot read it.
    """
    source = stream.source
    try:
        if source.path is not None and "://" not in source.path and not exists(source.path):
            raise BadRequest(
                "CAP-SOURCE",
                f"stream {stream.name}: there is nothing at {source.path}",
                "check source.path in streams.yaml",
                stream=stream.name,
            )
        if source.format == "kafka":
            # All that a topic has is the stream, not what comes from now on.
            options = {"startingOffsets": "earliest", **source.options}
            return spark.readStream.format("kafka").options(**options).load()
        reader = spark.readStream.format(source.format).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        elif source.format not in ("delta", "rate"):
            # Streams of files must be told their columns; the files know them.
            files = spark.read.format(source.format).options(**source.options)
            reader = reader.schema(files.load(source.path).schema)
        return reader.load(source.path)
    except CapstanError:
        raise
    except Exception as error:
        raise BadRequest(
            "CAP-SOURCE",
            f"stream {stream.name}: the source cannot be read: {str(error).splitlines()[0]}",
            _missing(source) or "check source in streams.yaml",
            stream=stream.name,
        ) from error


def _missing(source: Source) -> str:
    """What is to be fetched before such a source can be read; empty where nothing lacks."""
    if source.format == "kafka" and not kafka_jars():
        return "run `make kafka` first"
    on_s3 = source.path is not None and source.path.startswith("s3a://")
    return "run `make s3` first" if on_s3 and not s3_jars() else ""


def broker_gone(stream: str, error: Exception) -> Broken | None:
    """The error for a broker that does not answer; None for an error of another kind."""
    text = str(error)
    if not any(sign in text for sign in _GONE):
        return None
    reason = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return Broken(
        "CAP-BROKER",
        f"stream {stream}: the broker does not answer: {reason}",
        "see whether it runs, and source.options in streams.yaml; then run the same again",
        stream=stream,
    )


def file_damaged(stream: str, tape: str, error: Exception) -> Broken | None:
    """The error for a file of the source that is gone or cut short; None for any other error.

    Args:
        stream: The stream.
        tape: The folder of its tape, whose own files are no source.
        error: What the query ended with.
    """
    found = breakage.foreseen(error)
    path = str(found.fields.get("path", "")) if found is not None else ""
    if found is None or found.code != "CAP-DAMAGED" or not path or path.startswith(tape):
        return None
    return Broken(
        found.code,
        f"stream {stream}: a file of the source cannot be read: {path}",
        "put it back whole, under the same name; then run the same again",
        stream=stream,
        path=path,
    )
