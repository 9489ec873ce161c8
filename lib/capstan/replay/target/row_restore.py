"""The rows that a rollback restores, from the versions before and after a run."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from capstan.core.sql_names import quoted
from capstan.storage.tape.fingerprint import row_hashes

_HASHES = ("_capstan_h1", "_capstan_h2")
_COUNT, _NUMBER = "_capstan_count", "_capstan_number"


def except_all(rows: DataFrame, others: DataFrame) -> DataFrame:
    """The multiset difference of rows of a table: EXCEPT ALL, for columns of any type."""
    # Rows are compared by their content hashes, as Spark's set operations do not support maps.
    numbered = _hashed(rows).withColumn(
        _NUMBER, F.row_number().over(Window.partitionBy(*_HASHES).orderBy(_HASHES[0]))
    )
    pairs = _hashed(with_columns(others, rows.schema)).select(*_HASHES)
    counts = pairs.groupBy(*_HASHES).agg(F.count(F.lit(1)).alias(_COUNT))
    kept = numbered.join(counts, list(_HASHES), "left").where(
        F.col(_NUMBER) > F.coalesce(_COUNT, F.lit(0))
    )
    return kept.select(*map(quoted, rows.columns))


def with_columns(rows: DataFrame, schema: StructType) -> DataFrame:
    """The rows with the columns of a schema, in its order; missing columns are null."""
    return rows.select(
        *(
            F.col(quoted(field.name))
            if field.name in rows.columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )


def rows_with_keys(
    rows: DataFrame, others: DataFrame, keys: Sequence[str], how: str = "left_semi"
) -> DataFrame:
    """The rows that share a key with a row of `others`; for `left_anti`, those that share none."""
    named, same = _keys_of(others, keys)
    return rows.join(named, same, how)


def before_image(changed: DataFrame, before: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The previous row of each changed key; `_gone` marks keys that had none."""
    named, same = _keys_of(changed, keys)
    marked = before.withColumn("_gone", F.lit(False))
    rest = [F.col(quoted(name)) for name in before.columns if name not in keys]
    return named.join(marked, same, "left").select(
        *(F.col(f"_key{i}").alias(key) for i, key in enumerate(keys)),
        *rest,
        F.coalesce(F.col("_gone"), F.lit(True)).alias("_gone"),
    )


def _keys_of(rows: DataFrame, keys: Sequence[str]) -> tuple[DataFrame, list[Column]]:
    """The distinct keys of rows as `_key0` and so on, and the conditions to join them by."""
    distinct = rows.select(*map(quoted, keys)).distinct()
    # Renamed, since both sides may be the same table, whose columns would be ambiguous.
    named = distinct.select(*(F.col(quoted(k)).alias(f"_key{i}") for i, k in enumerate(keys)))
    same = [F.col(f"_key{i}").eqNullSafe(F.col(quoted(k))) for i, k in enumerate(keys)]
    return named, same


def _hashed(rows: DataFrame) -> DataFrame:
    first, second = row_hashes(rows.schema.fields)
    return rows.withColumns(dict(zip(_HASHES, (first, second), strict=True)))
