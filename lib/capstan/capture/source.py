"""The source of a stream, as Structured Streaming reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capstan.declare import Stream
from capstan.errors import BadRequest, CapstanError
from capstan.tape.lake import exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        reader = spark.readStream.format(source.format).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        elif source.format not in ("delta", "kafka", "rate"):
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
            "check source in streams.yaml",
            stream=stream.name,
        ) from error
