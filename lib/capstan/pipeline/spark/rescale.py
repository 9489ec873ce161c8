"""Rescale of a pipeline's state to more or fewer replay workers, through one shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F

from capstan.pipeline.graph.stage_planner import StagePlan
from capstan.pipeline.spark.state_rows import StateKind, StateRow, batch_of, rows_of
from capstan.pipeline.spark.task_errors import in_task, on_driver
from capstan.pipeline.state.chunk_rescale import (
    Arrivals,
    merge_headers,
    require_none_lost,
    rescale_chunk,
)
from capstan.pipeline.state.chunks import StateHeader
from capstan.pipeline.state.errors import NotWhole
from capstan.spark.versions_api import repartition_by_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Headers = Mapping[int, Mapping[int, StateHeader]]
"""Headers by stage and worker."""


def headers_of(rows: Iterable[StateRow]) -> dict[int, dict[int, StateHeader]]:
    """Return the headers among rows of state."""
    headers: dict[int, dict[int, StateHeader]] = {}
    for row in rows:
        if row.kind is StateKind.HEAD:
            headers.setdefault(row.stage, {})[row.worker] = StateHeader.from_json(row.head or "")
    return headers


def require_headers(plan: StagePlan, headers: Headers, peers: int) -> None:
    """Check that exactly the stages with a key have headers, one of each worker."""
    keyed = {stage.number for stage in plan.stages if stage.key is not None}
    workers = {number: set(by_worker) for number, by_worker in headers.items()}
    if workers != {number: set(range(peers)) for number in keyed}:
        text = f"expected state of {peers} workers at stages {sorted(keyed)}, got {workers}"
        raise NotWhole.create(text, reason="other stages or workers")


@dataclass(frozen=True, slots=True)
class Rescaling:
    """A rescale of a pipeline's state."""

    plan: StagePlan
    before: int
    after: int
    headers: Mapping[int, StateHeader]  # by stage, each merged of all workers before

    @classmethod
    def create(cls, plan: StagePlan, headers: Headers, before: int, after: int) -> Rescaling:
        """Create the rescale of the state with these headers."""
        require_headers(plan, headers, before)
        return cls(
            plan,
            before,
            after,
            {n: merge_headers(plan.stages[n], by_worker) for n, by_worker in headers.items()},
        )

    def split(self, rows: Iterable[StateRow]) -> Iterator[StateRow]:
        """Convert rows of state, except headers, to those of the workers after the rescale."""
        for row in rows:
            if row.kind is StateKind.AHEAD:
                yield replace(row, worker=row.worker % self.after)
            elif row.kind is StateKind.CHUNK:
                stage = self.plan.stages[row.stage]
                for chunk in rescale_chunk(stage, row.chunk(), self.before, self.after):
                    yield StateRow.from_chunk(row.stage, chunk)

    def seeds(self) -> Iterator[StateRow]:
        """Yield the merged header of each stage for every worker after the rescale."""
        for number, header in self.headers.items():
            for worker in range(self.after):
                yield StateRow.from_header(number, worker, header)

    def arrive(self, rows: Iterable[StateRow]) -> Iterator[StateRow]:
        """Yield all rows of workers after checking their owner; then the workers' headers."""
        arrivals: dict[tuple[int, int], Arrivals] = {}
        headers: dict[tuple[int, int], StateHeader] = {}
        for row in rows:
            place = row.stage, row.worker
            if row.kind is StateKind.HEAD:
                headers[place] = StateHeader.from_json(row.head or "")
                continue
            if row.kind is StateKind.CHUNK:
                stage = self.plan.stages[row.stage]
                arrived = arrivals.setdefault(place, Arrivals(stage, row.worker, self.after))
                arrived.add(row.chunk())
            yield row
        for place, header in headers.items():
            number, worker = place
            arrived = arrivals.get(place) or Arrivals(self.plan.stages[number], worker, self.after)
            yield StateRow.from_header(number, worker, arrived.header(header))

    def require_none_lost(self, headers: Headers) -> None:
        """Check that the workers have exactly the rows and keys from before."""
        require_headers(self.plan, headers, self.after)
        for number, before in self.headers.items():
            require_none_lost(self.plan.stages[number], before, headers[number].values())


def rescale(frame: DataFrame, plan: StagePlan, before: int, after: int) -> DataFrame:
    """Rescale rows of a run's final state to other replay workers, and verify that none is lost.

    Each worker's rows are in their own partition; the caller unpersists the result.
    """
    rescaling = Rescaling.create(plan, headers_of(_collect_headers(frame)), before, after)
    schema = frame.schema
    rest = frame.where(F.col("kind") != StateKind.HEAD.value)
    seeds = pa.Table.from_batches([batch_of(rescaling.seeds())])
    moved = rest.mapInArrow(_over(rescaling.split), schema).unionByName(
        frame.sparkSession.createDataFrame(seeds).to(schema)
    )
    # Rows name their worker: in a union, task numbers differ from those of workers.
    arrived = repartition_by_number(moved, after, "worker").mapInArrow(
        _over(rescaling.arrive), schema
    )
    persisted = arrived.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with on_driver():
            rescaling.require_none_lost(headers_of(_collect_headers(persisted)))
    except BaseException:
        persisted.unpersist()
        raise
    return persisted


def _collect_headers(frame: DataFrame) -> list[StateRow]:
    """Collect the headers: one per worker and stage."""
    headers = frame.where(F.col("kind") == StateKind.HEAD.value)
    return [StateRow.from_place(row.asDict(), None) for row in headers.drop("data").collect()]


_Batches = Iterator[pa.RecordBatch]


def _over(
    work: Callable[[Iterable[StateRow]], Iterator[StateRow]],
) -> Callable[[_Batches], _Batches]:
    def body(batches: _Batches) -> _Batches:
        with in_task():
            for row in work(row for batch in batches for row in rows_of(batch)):
                yield batch_of([row])

    return body
