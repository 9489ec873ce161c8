"""The rows that a rollback puts back: what a run has added is told from the versions about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from capstan.storage.tape.fingerprint import row_hashes
from capstan.storage.tape.region_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_HASHES = ("_capstan_h1", "_capstan_h2")
_COUNT, _NUMBER = "_capstan_count", "_capstan_number"


def except_all(rows: DataFrame, others: DataFrame) -> DataFrame:
    """Rows without as many of each as `others` has: EXCEPT ALL, for columns of any type.

    Rows are told apart by their content hashes, as Spark takes no maps in set operations.

    Args:
        rows: Rows of a table.
        others: Rows of the same table, perhaps from before it got its last columns.

    Returns:
        The columns of `rows`, in no order.
    """
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
    """The rows with the columns of a schema, in its order; null where they have none of it."""
    return rows.select(
        *(
            F.col(quoted(field.name))
            if field.name in rows.columns
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )


def rows_with_keys(rows: DataFrame, own: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The rows that have a key which a row of `own` has, columns and all."""
    named, same = _keys_of(own, keys)
    return rows.join(named, same, "left_semi")


def before_image(own: DataFrame, before: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Per key of `own` its row of before, or `_gone` where there was none."""
    named, same = _keys_of(own, keys)
    marked = before.withColumn("_gone", F.lit(False))
    rest = [F.col(quoted(name)) for name in before.columns if name not in keys]
    return named.join(marked, same, "left").select(
        *(F.col(f"_key{i}").alias(key) for i, key in enumerate(keys)),
        *rest,
        F.coalesce(F.col("_gone"), F.lit(True)).alias("_gone"),
    )


def _keys_of(own: DataFrame, keys: tuple[str, ...]) -> tuple[DataFrame, list[Column]]:
    """The keys of rows, each once, as `_key0` and so on; and what equals them in another frame."""
    changed = own.select(*map(quoted, keys)).distinct()
    # By name alone: both sides may be the same table, and Spark could not tell their columns apart.
    named = changed.select(*(F.col(quoted(k)).alias(f"_key{i}") for i, k in enumerate(keys)))
    same = [F.col(f"_key{i}").eqNullSafe(F.col(quoted(k))) for i, k in enumerate(keys)]
    return named, same


def _hashed(rows: DataFrame) -> DataFrame:
    first, second = row_hashes(rows.schema.fields)
    return rows.withColumns(dict(zip(_HASHES, (first, second), strict=True)))
