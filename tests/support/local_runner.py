"""Local runner: the stages of a pipeline in one process, over rows in memory, without Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.times import Box, TimeType
from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import END, TIME
from capstan.pipeline.graph.stage_planner import Stage, StageInput, StagePlan
from capstan.pipeline.input_range import Reach
from capstan.pipeline.operators.ordering import ordered
from capstan.pipeline.spark import wire_format
from capstan.pipeline.spark.node_frames import side_rows
from capstan.pipeline.spark.stage_task import StageWork
from capstan.pipeline.spark.state_rows import StateRow
from capstan.pipeline.spark.wire_format import AT, BLOB, KIND, NoteKind, part
from capstan.pipeline.state.errors import NoHash
from capstan.pipeline.state.key_hash import key_hashes, owners_of

_TASK = "#seat"


def everything(time_type: TimeType) -> Reach:
    """Return the range of all times, for workers that are all closed."""
    box = Box.everything(time_type)
    return Reach(time_type, 0, box, box, END, complete=True)


@dataclass(frozen=True, slots=True)
class LocalRun:
    """Result of a run in memory.

    Attributes:
        sinks: Rows of each sink with its own columns; the first column is their time, `_time`
            (int64).
        notes: Notes of the tasks, by kind.
        state: State of the tasks at the end, if it was requested.
    """

    sinks: Mapping[str, pa.Table]
    notes: pa.Table
    state: tuple[StateRow, ...]


def run_locally(
    records: pa.Table | Mapping[str, pa.Table],
    pipeline: Pipeline,
    reach: Reach,
    *,
    sinks: Iterable[str] | None = None,
    peers: int = 1,
    rows_per_batch: int = 10_000,
    state: Sequence[StateRow] | None = None,
    keeps: bool = False,
) -> LocalRun:
    """Run a pipeline over all rows of its streams.

    Args:
        records: Rows with `_time` as integers, and the columns that the source declares; of several
            streams, by the names of their sources.
        pipeline: The pipeline.
        reach: Times to read and write; `records` must not have other times.
        sinks: Sinks to compute; None for all.
        peers: Number of replay workers of a stage with a key.
        rows_per_batch: Maximum number of rows that a task processes at once.
        state: Final state of an earlier run with the same number of workers, to continue from.
        keeps: Whether to return the final state of the tasks.

    Raises:
        OperatorFailed: An operator raised; node, time and worker are in its fields.
        InvalidRequestError: `CAP-DAG-...` when the graph is invalid.
    """
    plan = pipeline.plan(sinks)
    tables = {table.source: table for table in pipeline.tables}
    rows: dict[str, pa.Table] = {}
    for number in plan.dag.sources:
        node = plan.dag.nodes[number]
        if node.name in tables:
            rows[node.name] = side_rows(pipeline, tables[node.name], node.schema, reach)
        else:
            given = records if isinstance(records, pa.Table) else records[node.name]
            columns = given.select(node.schema.names).cast(node.schema).combine_chunks()
            times = given.column(TIME).cast(pa.int64()).combine_chunks()
            rows[node.name] = pa.table([times, columns.to_struct_array()], names=[AT, part(0)])
    run = _LocalStages(plan, reach, peers, rows_per_batch, rows, state, keeps)
    for stage in plan.stages:
        run.add(stage)
    names = {plan.dag.nodes[number].name for number in plan.dag.sinks}
    outputs = {name: _unpacked(rows[name], plan.dag.node(name).schema) for name in names}
    return LocalRun(outputs, pa.concat_tables(run.notes), tuple(run.state))


class _LocalStages:
    """Runs stages one after another."""

    def __init__(
        self,
        plan: StagePlan,
        reach: Reach,
        peers: int,
        size: int,
        rows: dict[str, pa.Table],
        state: Sequence[StateRow] | None,
        keeps: bool,
    ) -> None:
        self._plan = plan
        self._reach = reach
        self._peers = peers
        self._size = size
        self._rows = rows
        self._marks: dict[str, list[int]] = {}
        self._saved = state
        self._keeps = keeps
        self.notes: list[pa.Table] = []
        self.state: list[StateRow] = []

    def add(self, stage: Stage) -> None:
        """Run a stage after the stages that it reads."""
        keyed, resumes = stage.key is not None, self._saved is not None
        work = StageWork.create(
            self._plan.dag, stage, self._reach, self._peers, resumes=resumes, keeps=self._keeps
        )
        incoming = work.incoming
        parts = [self._input(n, name, stage, incoming) for n, name in enumerate(work.inputs)]
        rows = pa.concat_tables(parts)
        batches: list[pa.RecordBatch] = []
        for worker in range(self._peers if keyed else 1):
            owned = rows.filter(pc.equal(rows.column(_TASK), worker)) if keyed else rows
            batches += work.run(self._batches(owned, keyed, work, worker), worker)
        result = pa.Table.from_batches(batches, work.outgoing)
        for name in (*stage.outputs, *stage.sinks):
            column = part(work.part_of(name))
            output = result.filter(pc.is_valid(result.column(column)))
            self._rows[name] = output.select([AT, column]).rename_columns([AT, part(0)])
        notes = result.filter(pc.is_valid(result.column(KIND)))
        marks = pc.equal(notes.column(KIND), NoteKind.MARK.value)
        for batch in notes.filter(marks).to_batches():
            for text in batch.column(wire_format.NOTE).to_pylist():
                mark = json.loads(text)
                self._marks.setdefault(mark["node"], []).append(mark["watermark"])
        is_state = pc.equal(notes.column(KIND), NoteKind.STATE.value)
        for row in notes.filter(is_state).to_pylist():
            self.state.append(StateRow.from_place(json.loads(row[wire_format.NOTE]), row[BLOB]))
        rest = pc.invert(pc.or_(marks, is_state))
        self.notes.append(notes.filter(rest).select([KIND, wire_format.NOTE]))

    def _input(self, number: int, source: str, stage: Stage, schema: pa.Schema) -> pa.Table:
        """Return the rows of one input, with the task of each row."""
        entry = next((entry for entry in stage.inputs if entry.source == source), None)
        rows = self._rows[source if entry is None else entry.producer].combine_chunks()
        structs = rows.column(part(0)).combine_chunks()
        batch = pa.RecordBatch.from_struct_array(structs)
        times = rows.column(AT).combine_chunks()
        packed = wire_format.packed(schema, number, times, batch)
        return pa.Table.from_batches([packed.append_column(_TASK, self._tasks(entry, batch))])

    def _tasks(self, entry: StageInput | None, rows: pa.RecordBatch) -> pa.Array:
        if entry is None or not entry.columns:
            return pa.array([0] * rows.num_rows, pa.int64())
        columns = [rows.column(name) for name in entry.columns]
        try:
            return owners_of(key_hashes(columns), self._peers)
        except NoHash:
            keys = zip(*(column.to_pylist() for column in columns), strict=True)
            return pa.array([_hash(key) % self._peers for key in keys], pa.int64())

    def _batches(
        self, rows: pa.Table, keyed: bool, work: StageWork, worker: int
    ) -> Iterator[pa.RecordBatch]:
        yield from self._resumed(work, worker)
        limits = [
            {"node": entry.producer, "watermark": min(self._marks[entry.producer])}
            for entry in work.stage.inputs
            if entry.producer in self._marks
        ]
        yield wire_format.noted(work.incoming, NoteKind.MARK, limits)
        rows = rows.drop_columns([_TASK])
        if keyed:
            rows = ordered(rows, [(AT, "ascending")], []).combine_chunks()
        yield from rows.to_batches(max_chunksize=self._size)

    def _resumed(self, work: StageWork, worker: int) -> Iterator[pa.RecordBatch]:
        """Yield the saved state of a worker; the one worker of a stage without a key gets all."""
        keyed = work.stage.key is not None
        for row in self._saved or ():
            if row.stage == work.stage.number and (row.worker == worker or not keyed):
                yield wire_format.noted(work.incoming, NoteKind.STATE, [row.place()], row.data)


def _hash(key: tuple[object, ...]) -> int:
    # Equal values must have equal hashes: -0.0 is 0.0.
    values = tuple(value + 0.0 if isinstance(value, float) else value for value in key)
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=8).digest())


def _unpacked(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    structs = rows.column(part(0)).combine_chunks()
    table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])
    columns = table.select([name for name in schema.names if name != TIME])
    return columns.add_column(0, TIME, rows.column(AT))
