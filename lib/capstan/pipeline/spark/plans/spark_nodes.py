"""The nodes of a pipeline that Spark computes, as frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark.node_frames import sink_rows, source_rows
from capstan.pipeline.spark.plans.operator_plan import (
    OperatorPlan,
    column,
    packed,
    united,
    unpacked,
)
from capstan.pipeline.spark.row_transport import spark_type
from capstan.pipeline.spark.wire_format import AT, part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROW = part(0)

Keep = Callable[["DataFrame"], "DataFrame"]
"""Stores rows for several reads, and returns them."""


@dataclass(slots=True)
class SparkNodes:
    """Frames of nodes, as `OperatorPlan` has them."""

    spark: SparkSession
    pipeline: Pipeline
    dag: Dag
    reach: Reach
    keep: Keep
    streams: Mapping[str, Sequence[DataFrame]]
    counting: bool  # whether to count the rows outside of the range
    sinks: dict[str, DataFrame] = field(default_factory=dict)  # as `PipelineRun.sinks`
    kept: list[DataFrame] = field(default_factory=list)
    _sources: dict[str, DataFrame] = field(default_factory=dict)
    _frames: dict[str, DataFrame] = field(default_factory=dict)
    _outside: dict[str, DataFrame] = field(default_factory=dict)

    def add(self, name: str, operator: OperatorPlan[Any] | None) -> None:
        """Build the frame of a node after those that it reads; without an operator it forwards."""
        readers, schema = self.dag.outputs(name), self.dag.node(name).schema
        spark_type(self.pipeline, name, schema)
        edges = self.dag.inputs(name)
        inputs = [self._frames[self.dag.nodes[edge.source].name] for edge in edges]
        if not inputs:
            rows = source_rows(self.spark, self.pipeline, name, schema, self.streams, self.reach)
            self._sources[name] = rows
            rows = unpacked(rows, schema, _ROW)
        else:
            rows = united(inputs, schema) if operator is None else operator.rows(*inputs)
            rows = self._kept(rows) if len(readers) > 1 else rows
        self._frames[name] = rows
        if not readers:
            self._add_sink(name)

    def rows(self, name: str) -> DataFrame:
        """The rows of a node for the engine: `time`, a source's order if known, and struct `p0`."""
        # As behind a stage of the engine, only a record itself has a place on tape.
        if name in self._sources:
            return self._sources[name]
        return packed(self._frames[name], self.dag.node(name).schema, _ROW)

    def trimmed(self) -> dict[str, int]:
        """The number of rows of each bounded sink outside of the range; this computes the sinks."""
        return {
            name: row[0] for name, outside in self._outside.items() for row in outside.collect()
        }

    def _add_sink(self, name: str) -> None:
        rows, inside = self._frames[name], F.lit(True)
        if self.reach.since is not None:
            inside &= F.col(AT) >= self.reach.since
        if self.reach.until is not None:
            inside &= F.col(AT) < self.reach.until
        bounded = (self.reach.since, self.reach.until) != (None, None)
        if self.counting and bounded:
            rows = self._kept(rows)
            self._outside[name] = rows.select(F.count_if(~inside))
        names = self.dag.node(name).schema.names
        self.sinks[name] = sink_rows(
            self.pipeline, name, names, rows.where(inside), column, self.reach
        )

    def _kept(self, rows: DataFrame) -> DataFrame:
        rows = self.keep(rows)
        self.kept.append(rows)
        return rows
