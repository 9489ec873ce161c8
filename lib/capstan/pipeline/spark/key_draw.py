"""Some of the keys of a pipeline: those whose hash is the least."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType

from capstan.core.sql_names import quoted
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.key_columns import Names, key_columns
from capstan.pipeline.spark.plans.operator_plan import inexact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_LEAST: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class KeyDraw:
    """Keys whose hash is at most a limit, in the records of each source and in a sink's rows."""

    columns: Mapping[str, Names]  # by source; an only one also has the name ""
    types: Mapping[str, DataType]  # of the sink's columns
    salt: str  # Another one draws other keys.
    limit: int = _LEAST

    @classmethod
    def of(cls, pipeline: Pipeline, sink: str, salt: str) -> Self | None:
        """A draw of no key yet; None where the rows of a sink do not divide by keys."""
        dag = pipeline.plan([sink]).dag
        tables = {table.source for table in pipeline.tables}
        # Tables are read whole.
        columns = {s: names for s, names in key_columns(dag, sink).items() if s not in tables}
        schema = dag.node(sink).schema
        common = set.intersection(*(set(names) for names in columns.values()))
        exact = [name for name in sorted(common) if inexact(schema, [name]) is None]
        if not exact:
            return None
        types = from_arrow_schema(pa.schema([schema.field(name) for name in exact]))
        if len(columns) == 1:
            columns[""] = next(iter(columns.values()))
        return cls(columns, {field.name: field.dataType for field in types}, salt)

    def drawing(self, share: float, rows: DataFrame) -> Self | None:
        """As many keys as their share makes likely, and at least one of some rows of the sink.

        None when there are no rows.
        """
        least = rows.agg(F.min(self._hash(self._own))).first()
        if least is None or least[0] is None:
            return None
        return replace(self, limit=max(least[0], _LEAST + int(share * 2**64)))

    def records(self, source: str, records: DataFrame) -> DataFrame:
        """The records of a source that have a drawn key."""
        return records.where(self._hash(self.columns[source]) <= self.limit)

    def rows(self, rows: DataFrame) -> DataFrame:
        """The rows of the sink that have a drawn key."""
        return rows.where(self._hash(self._own) <= self.limit)

    @property
    def _own(self) -> Names:
        return {name: name for name in self.types}

    def _hash(self, names: Names) -> Column:
        # The sink's types: a record may have narrower ones.
        keys = (F.col(quoted(names[name])).cast(kind) for name, kind in self.types.items())
        return F.xxhash64(F.lit(self.salt), *keys)
