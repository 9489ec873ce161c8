"""Delta tables by their names in a catalog of the Spark session."""

from __future__ import annotations

import re
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from capstan.core.config import check_target
from capstan.core.sql_names import text_literal
from capstan.errors import InvalidRequestError
from capstan.errors.translation import root_message

_PARTS = re.compile(r"`[^`]+`|[^.`]+")
_IMPLEMENTATION = "spark.sql.catalogImplementation"


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A Delta table that a catalog knows."""

    path: str
    table: str


def find_table(spark: SparkSession, name: str) -> CatalogTable | None:
    """The Delta table that a catalog has under a name; None if there is none."""
    try:
        if not spark.catalog.tableExists(name):
            schema = ".".join(_PARTS.findall(name)[:-1])
            if schema and not spark.catalog.databaseExists(schema):
                raise _refused(name, f"cannot be created: there is no schema {schema}")
            return None
        [row] = spark.sql(f"DESCRIBE DETAIL {name}").select("format", "id", "location").collect()
    except (Py4JJavaError, PySparkException) as error:
        raise _refused(name, f"cannot be looked up: {root_message(error)}") from error
    if row["format"] != "delta":
        raise _refused(name, f"is in the format {row['format']}, and no Delta table")
    # Hadoop prints local paths as file:/path.
    return CatalogTable(check_target(re.sub("^file:/+", "/", row["location"])), row["id"])


def register_table(spark: SparkSession, name: str, path: str) -> None:
    """Give the Delta table at a path a name in a catalog, unless the name is taken."""
    try:
        location = text_literal(path)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {location}")
    except (Py4JJavaError, PySparkException) as error:
        problem = f"cannot be registered for {path}: {root_message(error)}"
        raise _refused(name, problem) from error


def is_lasting(spark: SparkSession, name: str) -> bool:
    """Whether a catalog still knows a name after the session: Spark's own may be in memory."""
    parts = _PARTS.findall(name)
    own = len(parts) < 3 or parts[0].strip("`").lower() == "spark_catalog"
    return not own or spark.conf.get(_IMPLEMENTATION, "in-memory") != "in-memory"


def _refused(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "CAP-CATALOG",
        f"table {name} {problem}",
        "check the name, and the catalogs of the Spark session; or declare the table's path",
        table=name,
    )
