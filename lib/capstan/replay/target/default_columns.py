"""Default values of a target's columns, which its replays do not write."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.storage.delta import delta


def default_columns(path: str, schema: StructType) -> dict[str, Column]:
    """Columns of a table that have a default value, each as an expression of that value."""
    defaults = delta.default_values(path)
    return {
        field.name: F.expr(defaults[field.name]).cast(field.dataType)
        for field in schema
        if field.name in defaults
    }


def with_defaults(rows: DataFrame, path: str) -> DataFrame:
    """Rows with the default values of the table's other columns."""
    # An `INSERT` in SQL fills them in; for a DataFrame, Delta writes nulls.
    if not delta.default_values(path):
        return rows
    present = {name.lower() for name in rows.columns}
    columns = default_columns(path, delta.load(rows.sparkSession, path).schema)
    missing = {name: value for name, value in columns.items() if name.lower() not in present}
    return rows.withColumns(missing) if missing else rows
