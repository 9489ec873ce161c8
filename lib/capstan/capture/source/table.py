"""Sources that are tables of a catalog, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from capstan.capture.source.files.listing import FILES
from capstan.errors import InvalidRequestError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from capstan.core.config import Stream


def read_table(spark: SparkSession, stream: Stream) -> DataFrame:
    """The rows of a source's table, as a streaming frame."""
    table = stream.source.table
    assert table is not None
    details = _details(spark, table)
    provider = details.get("Provider", "")
    if provider.lower() in FILES:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: table {table} is a folder of files in the format {provider}",
            f"declare its folder, so that each file is counted: format: {provider.lower()}, path: "
            f"{details.get('Location', 'its location')}",
            stream=stream.name,
        )
    frame = spark.readStream.options(**stream.source.options).table(table)
    if not frame.isStreaming:
        raise InvalidRequestError(
            "CAP-SOURCE",
            f"stream {stream.name}: {table} is a view, whose rows cannot be read as a stream",
            "name a table; source.select and source.where can do what the view does",
            stream=stream.name,
        )
    return frame


def _details(spark: SparkSession, table: str) -> dict[str, str]:
    """What the catalog tells about a table; nothing for one that it does not describe."""
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()
    except PySparkException:
        return {}
    return {str(row["col_name"]): str(row["data_type"]) for row in rows}
