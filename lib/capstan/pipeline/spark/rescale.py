"""The state of a pipeline's run dealt to more or fewer replay workers, through one shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as F

from capstan.pipeline.graph.stage_planner import Plan
from capstan.pipeline.spark.state_rows import KeptKind, StateRow, batch_of, rows_of
from capstan.pipeline.spark.task_errors import in_task, on_driver
from capstan.pipeline.state.chunk_rescale import (
    Arrivals,
    merge_headers,
    require_none_lost,
    rescale_chunk,
)
from capstan.pipeline.state.chunks import StateHeader
from capstan.pipeline.state.errors import NotWhole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Heads = Mapping[int, Mapping[int, StateHeader]]
"""By stage and worker."""


def heads_of(rows: Iterable[StateRow]) -> dict[int, dict[int, StateHeader]]:
    """The heads among rows of state."""
    found: dict[int, dict[int, StateHeader]] = {}
    for row in rows:
        if row.kind is KeptKind.HEAD:
            found.setdefault(row.stage, {})[row.worker] = StateHeader.from_json(row.head or "")
    return found


def require_heads(plan: Plan, heads: Heads, peers: int) -> None:
    """Check that every stage with a key has a head of each worker, and no other has.

    Raises:
        NotWhole: It has not: the state is not all there, or of another graph.
    """
    wanted = {stage.number for stage in plan.stages if stage.key is not None}
    found = {number: set(mine) for number, mine in heads.items()}
    if found != {number: set(range(peers)) for number in wanted}:
        text = (
            f"the state of {peers} workers at stages {sorted(wanted)} is wanted, and is of {found}"
        )
        raise NotWhole.create(text, reason="other stages or workers")


@dataclass(frozen=True, slots=True)
class Rescaling:
    """From so many replay workers to so many.

    Attributes:
        plan: The stages.
        before: How many workers there were.
        after: How many there will be.
        heads: What all workers before knew together, by stage.
    """

    plan: Plan
    before: int
    after: int
    heads: Mapping[int, StateHeader]

    @classmethod
    def of(cls, plan: Plan, heads: Heads, before: int, after: int) -> Rescaling:
        """A rescaling of the state that has these heads.

        Raises:
            NotWhole: Some are missing, or the workers are not at one point.
            NotKeyed: They have timers that differ.
        """
        require_heads(plan, heads, before)
        return cls(
            plan,
            before,
            after,
            {number: merge_headers(plan.stages[number], mine) for number, mine in heads.items()},
        )

    def deal(self, rows: Iterable[StateRow]) -> Iterator[StateRow]:
        """Rows of state, but for heads, as those of the workers from now on.

        Raises:
            NotKeyed: A state is not kept by key.
            Misplaced: A key was with another worker than its owner.
            SnapshotCorrupt: A row is not what was written.
        """
        for row in rows:
            if row.kind is KeptKind.AHEAD:
                yield replace(row, worker=row.worker % self.after)
            elif row.kind is KeptKind.CHUNK:
                stage = self.plan.stages[row.stage]
                for chunk in rescale_chunk(stage, row.chunk(), self.before, self.after):
                    yield StateRow.of_chunk(row.stage, chunk)

    def seeds(self) -> Iterator[StateRow]:
        """For each worker from now on what it has to have, at each stage."""
        for number, head in self.heads.items():
            for worker in range(self.after):
                yield StateRow.of_head(number, worker, head)

    def arrive(self, rows: Iterable[StateRow]) -> Iterator[StateRow]:
        """What was dealt to workers, each key with its owner; then the workers' heads.

        Args:
            rows: What `deal` and `seeds` have given, all that is one worker's.

        Raises:
            Misplaced: A key is with another worker than its owner.
            SnapshotCorrupt: A row is not what was dealt.
        """
        here: dict[tuple[int, int], Arrivals] = {}
        heads: dict[tuple[int, int], StateHeader] = {}
        for row in rows:
            place = row.stage, row.worker
            if row.kind is KeptKind.HEAD:
                heads[place] = StateHeader.from_json(row.head or "")
                continue
            if row.kind is KeptKind.CHUNK:
                stage = self.plan.stages[row.stage]
                mine = here.setdefault(place, Arrivals(stage, row.worker, self.after))
                mine.add(row.chunk())
            yield row
        for place, head in heads.items():
            number, worker = place
            arrived = here.get(place) or Arrivals(self.plan.stages[number], worker, self.after)
            yield StateRow.of_head(number, worker, arrived.header(head))

    def require_none_lost(self, heads: Heads) -> None:
        """Check that the workers have what there was, no less and no more.

        Raises:
            Misplaced: They have not.
            NotWhole: One of them has no head.
        """
        require_heads(self.plan, heads, self.after)
        for number, before in self.heads.items():
            require_none_lost(self.plan.stages[number], before, heads[number].values())


def rescale(frame: DataFrame, plan: Plan, before: int, after: int) -> DataFrame:
    """Rows of state as those of other replay workers; what they have is proved to be the same.

    Args:
        frame: Rows of `keeping.COLUMNS`, of one run's end.
        plan: The stages that it is the state of.
        before: How many workers there were.
        after: How many there will be.

    Returns:
        Such rows, each worker's in a partition of its own; persisted, for who unpersists them.

    Raises:
        StateError: The state is not all there, or cannot be dealt.
        Misplaced: A key was not with its owner; or, which would be a defect, is not afterwards.
    """
    rescaling = Rescaling.of(plan, heads_of(_collected(frame)), before, after)
    schema = frame.schema
    rest = frame.where(F.col("kind") != KeptKind.HEAD.value)
    seeds = pa.Table.from_batches([batch_of(rescaling.seeds())])
    dealt = rest.mapInArrow(_over(rescaling.deal), schema).unionByName(
        frame.sparkSession.createDataFrame(seeds).to(schema)
    )
    # Who a row is for, it says itself: a task's number is its own only where it is not in a union.
    arrived = dealt.repartitionById(after, F.col("worker")).mapInArrow(
        _over(rescaling.arrive), schema
    )
    kept = arrived.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        with on_driver():
            rescaling.require_none_lost(heads_of(_collected(kept)))
    except BaseException:
        kept.unpersist()
        raise
    return kept


def _collected(frame: DataFrame) -> list[StateRow]:
    """The heads, of which there are as many as workers and stages."""
    heads = frame.where(F.col("kind") == KeptKind.HEAD.value)
    return [StateRow.of_place(row.asDict(), None) for row in heads.drop("data").collect()]


_Batches = Iterator[pa.RecordBatch]


def _over(
    work: Callable[[Iterable[StateRow]], Iterator[StateRow]],
) -> Callable[[_Batches], _Batches]:
    def body(batches: _Batches) -> _Batches:
        with in_task():
            for row in work(row for batch in batches for row in rows_of(batch)):
                yield batch_of([row])

    return body
