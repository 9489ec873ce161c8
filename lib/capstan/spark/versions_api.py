"""What the Python interface of some minor versions of Spark lacks, told by its features."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

_MASK = 0xFFFFFFFF


def repartition_by_number(frame: DataFrame, count: int, number: str) -> DataFrame:
    """Bring each row into the partition whose number, from 0 to `count` - 1, a column has."""
    if hasattr(frame, "repartitionById"):  # since Spark 4.1
        return frame.repartitionById(count, F.col(number))
    return repartition_by_hash(frame, count, number)


def repartition_by_hash(frame: DataFrame, count: int, number: str) -> DataFrame:
    """As `repartition_by_number`, by values whose hash is that of the partition."""
    # Spark places a row by the hash of a value alone, so each number is replaced by such a value.
    key = F.element_at(F.array(*map(F.lit, _values(count))), F.col(number).cast("int") + 1)
    return frame.repartition(count, key)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's Arrow schema of some columns, with timestamps in UTC."""
    # Before Spark 4.2 that is the default, and the parameter does not exist.
    has_zone = "timezone" in inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if has_zone else {}
    return to_arrow_schema(schema, **zone)


def _values(count: int) -> list[int]:
    """For each partition, an integer that Spark's hash partitioning brings there."""
    found: dict[int, int] = {}
    value = 0
    while len(found) < count:
        found.setdefault(_murmur3(value) % count, value)
        value += 1
    return [found[number] for number in range(count)]


def _murmur3(value: int) -> int:
    """Spark's hash of an integer: Murmur3 with seed 42, as a signed integer."""
    part = value * 0xCC9E2D51 & _MASK
    part = (part << 15 | part >> 17) & _MASK
    digest = 42 ^ (part * 0x1B873593 & _MASK)
    digest = (digest << 13 | digest >> 19) & _MASK
    digest = (digest * 5 + 0xE6546B64 & _MASK) ^ 4
    digest = (digest ^ digest >> 16) * 0x85EBCA6B & _MASK
    digest = (digest ^ digest >> 13) * 0xC2B2AE35 & _MASK
    digest ^= digest >> 16
    return digest - (1 << 32) if digest >> 31 else digest
