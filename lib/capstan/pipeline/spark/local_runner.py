"""The stages of a pipeline in one process, over rows in memory: what `play` does, without Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.definition import Pipeline
from capstan.pipeline.graph.events import TIME
from capstan.pipeline.graph.stage_planner import Plan, Stage, StageInput
from capstan.pipeline.input_range import Reach
from capstan.pipeline.operators.ordering import ordered
from capstan.pipeline.spark import wire_format
from capstan.pipeline.spark.side_tables import side_rows
from capstan.pipeline.spark.stage_task import StageWork
from capstan.pipeline.spark.state_rows import StateRow
from capstan.pipeline.spark.wire_format import AT, BLOB, KIND, NoteKind, part
from capstan.pipeline.state.chunks import PLACEMENT
from capstan.pipeline.state.errors import NoHash
from capstan.pipeline.state.key_hash import key_hashes

_SEAT = "#seat"


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run in memory.

    Attributes:
        sinks: The rows of each sink with its own columns, and their times as the first column,
            `_time` (int64).
        notes: What the tasks had to say, by kind.
        state: What they knew in the end, where that was asked for.
    """

    sinks: Mapping[str, pa.Table]
    notes: pa.Table
    state: tuple[StateRow, ...]


def run_here(
    records: pa.Table,
    pipeline: Pipeline,
    reach: Reach,
    *,
    sinks: Iterable[str] | None = None,
    peers: int = 1,
    rows_per_batch: int = 10_000,
    state: Sequence[StateRow] | None = None,
    keeps: bool = False,
) -> Ran:
    """Run a pipeline over rows of its one stream, to the end.

    Args:
        records: Rows with `_time` as integers, and the columns that the source declares.
        pipeline: What runs.
        reach: What is read and written; records at other times must not be there.
        sinks: The sinks that are wanted; None for all.
        peers: How many replay workers a stage with a key has.
        rows_per_batch: How many rows a task takes in at once at most.
        state: What an earlier run on as many workers knew in the end; this one goes on from it.
        keeps: Whether the tasks say what they know in the end.

    Raises:
        OperatorFailed: An operator raised; node, time and worker are in its fields.
        InvalidRequestError: `CAP-DAG-...` when the graph cannot be meant.
    """
    plan = pipeline.plan(sinks)
    tables = {table.source: table for table in pipeline.tables}
    rows: dict[str, pa.Table] = {}
    for number in plan.dag.sources:
        node = plan.dag.nodes[number]
        if node.name in tables:
            rows[node.name] = side_rows(pipeline, tables[node.name], node.schema, reach)
        else:
            own = records.select(node.schema.names).cast(node.schema).combine_chunks()
            times = records.column(TIME).cast(pa.int64()).combine_chunks()
            rows[node.name] = pa.table([times, own.to_struct_array()], names=[AT, part(0)])
    ran = _Ran(plan, reach, peers, rows_per_batch, rows, state, keeps)
    for stage in plan.stages:
        ran.add(stage)
    chosen = {plan.dag.nodes[number].name for number in plan.dag.sinks}
    found = {name: _opened(rows[name], plan.dag.node(name).schema) for name in chosen}
    return Ran(found, pa.concat_tables(ran.notes), tuple(ran.state))


class _Ran:
    """The stages that have run."""

    def __init__(
        self,
        plan: Plan,
        reach: Reach,
        peers: int,
        size: int,
        rows: dict[str, pa.Table],
        known: Sequence[StateRow] | None,
        keeps: bool,
    ) -> None:
        self._plan = plan
        self._reach = reach
        self._peers = peers
        self._size = size
        self._rows = rows
        self._marks: dict[str, list[int]] = {}
        self._known = known
        self._keeps = keeps
        self.notes: list[pa.Table] = []
        self.state: list[StateRow] = []

    def add(self, stage: Stage) -> None:
        """Run a stage whose inputs are there."""
        keyed, resumes = stage.key is not None, self._known is not None
        work = StageWork.of(
            self._plan.dag, stage, self._reach, self._peers, resumes=resumes, keeps=self._keeps
        )
        incoming = work.incoming
        parts = [self._given(n, name, stage, incoming) for n, name in enumerate(work.inputs)]
        came = pa.concat_tables(parts)
        out: list[pa.RecordBatch] = []
        for worker in range(self._peers if keyed else 1):
            here = came.filter(pc.equal(came.column(_SEAT), worker)) if keyed else came
            out += work.run(self._batches(here, keyed, work, worker), worker)
        made = pa.Table.from_batches(out, work.outgoing)
        for name in (*stage.outputs, *stage.sinks):
            column = part(work.part_of(name))
            kept = made.filter(pc.is_valid(made.column(column)))
            self._rows[name] = kept.select([AT, column]).rename_columns([AT, part(0)])
        notes = made.filter(pc.is_valid(made.column(KIND)))
        marks = pc.equal(notes.column(KIND), NoteKind.MARK.value)
        for batch in notes.filter(marks).to_batches():
            for node, mark in wire_format.marks(batch):
                self._marks.setdefault(node, []).append(mark)
        kept = pc.equal(notes.column(KIND), NoteKind.STATE.value)
        for row in notes.filter(kept).to_pylist():
            self.state.append(StateRow.of_place(json.loads(row[wire_format.NOTE]), row[BLOB]))
        rest = pc.invert(pc.or_(marks, kept))
        self.notes.append(notes.filter(rest).select([KIND, wire_format.NOTE]))

    def _given(self, number: int, source: str, stage: Stage, schema: pa.Schema) -> pa.Table:
        """The rows of one input, and to which worker they come."""
        entry = next((each for each in stage.inputs if each.source == source), None)
        rows = self._rows[source if entry is None else entry.producer].combine_chunks()
        structs = rows.column(part(0)).combine_chunks()
        opened = pa.RecordBatch.from_struct_array(structs)
        times = rows.column(AT).combine_chunks()
        packed = wire_format.packed(schema, number, times, opened)
        return pa.Table.from_batches([packed.append_column(_SEAT, self._seats(entry, opened))])

    def _seats(self, entry: StageInput | None, rows: pa.RecordBatch) -> pa.Array:
        if entry is None or not entry.columns:
            return pa.array([0] * rows.num_rows, pa.int64())
        columns = [rows.column(name) for name in entry.columns]
        try:
            return PLACEMENT.owners(key_hashes(columns), range(self._peers))
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
        rows = rows.drop_columns([_SEAT])
        if keyed:
            rows = ordered(rows, [(AT, "ascending")], []).combine_chunks()
        yield from rows.to_batches(max_chunksize=self._size)

    def _resumed(self, work: StageWork, worker: int) -> Iterator[pa.RecordBatch]:
        """What a worker of a stage knew; a stage without a key has one, which gets all of it."""
        keyed = work.stage.key is not None
        for row in self._known or ():
            if row.stage == work.stage.number and (row.worker == worker or not keyed):
                yield wire_format.noted(work.incoming, NoteKind.STATE, [row.place()], row.data)


def _hash(key: tuple[object, ...]) -> int:
    # Values that are equal must not differ here: -0.0 is 0.0.
    same = tuple(each + 0.0 if isinstance(each, float) else each for each in key)
    return int.from_bytes(hashlib.blake2b(repr(same).encode(), digest_size=8).digest())


def _opened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    structs = rows.column(part(0)).combine_chunks()
    opened = pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])
    own = opened.select([name for name in schema.names if name != TIME])
    return own.add_column(0, TIME, rows.column(AT))
