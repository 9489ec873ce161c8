"""A task of a stage: a `DagExecutor` over the rows of one replay worker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.json_object import Json
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.graph.errors import LateOutput
from capstan.pipeline.graph.events import END, TIME, Event, OutputKey, OutputKind, runs_of
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.input_range import Reach
from capstan.pipeline.operators.time_buffer import constant
from capstan.pipeline.spark import wire_format
from capstan.pipeline.spark.state_rows import Resumption, StateRow, final_state
from capstan.pipeline.spark.wire_format import (
    AT,
    BLOB,
    HEAD,
    KIND,
    NOTE,
    NodeMetrics,
    NoteKind,
    TimedRows,
)

_FLUSH_ROWS = 10_000
_TASK_NOTES = pa.array([kind.value for kind in (NoteKind.WORKER, NoteKind.STATE, NoteKind.MARK)])


@dataclass(frozen=True, slots=True)
class StageWork:
    """Everything that the tasks of a stage need to know."""

    stage: Stage  # its sub-graph is what the tasks run
    inputs: tuple[str, ...]  # sources of the sub-graph, in order of the parts of incoming rows
    reach: Reach
    peers: int  # replay workers of the stage, if it has a key
    resumes: bool  # from a saved state
    keeps: bool  # final state and early output are emitted at the end

    @classmethod
    def create(
        cls, dag: Dag, stage: Stage, reach: Reach, peers: int, *, resumes: bool, keeps: bool
    ) -> StageWork:
        """Create the work of a stage of `dag`; its own sources come before other stages' output."""
        sources = [name for name in stage.nodes if not dag.inputs(name)]
        inputs = (*sources, *(entry.source for entry in stage.inputs))
        # Cached before the stage is shipped: tasks may see other source text, or none at all.
        _ = stage.dag.signatures
        return cls(stage, inputs, reach, peers, resumes, keeps)

    @property
    def ordered(self) -> bool:
        """Whether rows arrive in order of time; otherwise watermarks wait until the end."""
        return self.stage.key is not None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Sinks of the sub-graph whose rows leave the stage, in order of their parts.

        Those that other stages read come first, in order of `stage.outputs`, then `stage.sinks`.
        """
        return (*(self.stage.exits[name] for name in self.stage.outputs), *self.stage.sinks)

    @property
    def incoming(self) -> pa.Schema:
        """Columns of the incoming rows."""
        return wire_format.wire_schema([self.stage.dag.node(name).schema for name in self.inputs])

    @property
    def outgoing(self) -> pa.Schema:
        """Columns of the outgoing rows."""
        return wire_format.wire_schema([self.stage.dag.node(name).schema for name in self.outputs])

    def part_of(self, node: str) -> int:
        """Return the number of the part with a node's outgoing rows."""
        return self.outputs.index(self.stage.exits.get(node, node))

    def run(self, batches: Iterable[pa.RecordBatch], worker: int) -> Iterator[pa.RecordBatch]:
        """Run the stage for one worker, unless a note states another.

        In batches of columns `incoming` notes come first; those for other stages are forwarded.
        """
        task = _Task(self, worker)
        for batch in batches:
            yield from task.take(batch)
        yield from task.finish()


class _Task:
    """The run of a stage by one worker."""

    def __init__(self, work: StageWork, worker: int) -> None:
        self._work = work
        self._worker = worker
        self._cached_executor: DagExecutor | None = None
        self._schemas = [work.stage.dag.node(name).schema for name in work.inputs]
        self._timed = all(TIME in schema.names for schema in self._schemas)
        self._outgoing = work.outgoing
        self._parts = {name: number for number, name in enumerate(work.outputs)}
        self._resumption = Resumption(work.stage, work.peers)
        self._waiting: dict[str, list[TimedRows]] = {}
        self._ahead: dict[str, list[TimedRows]] = {}
        self._rows = 0
        self._trimmed: dict[str, int] = dict.fromkeys(work.stage.sinks, 0)
        self._limits = [work.reach.last] * len(work.inputs)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process rows; yield the rows that are ready to leave."""
        notes = batch.column(KIND)
        if notes.null_count < len(notes):
            yield from self._notes(batch.filter(notes.is_valid()))
            batch = batch.filter(notes.is_null())
        if not batch.num_rows:
            return
        times = batch.column(AT)
        if not self._work.ordered or (self._timed and not self._executor.has_timers):
            self._feed(batch, times[0].as_py() if self._work.ordered else None)
            yield from self._collect()
            return
        # Without times of their own, the rows of one time are an event. With timers, due timers
        # must fire before the rows of the next time.
        for time, at_time in runs_of(batch, times):
            self._feed(at_time, time)
            yield from self._collect()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Advance the watermarks to the end, and yield the remaining rows and the counters."""
        self._advance(END)
        yield from self._collect()
        yield from self._flush()
        work, executor = self._work, self._executor
        if work.keeps:
            for row in final_state(work.stage, self._worker, executor, self._ahead):
                yield self._noted(NoteKind.STATE, [row.place()], row.data)
        metrics = [
            NodeMetrics(work.stage.number, self._worker, name, executor.node_metrics(name))
            for name in work.stage.nodes
        ]
        yield self._noted(NoteKind.METRICS, [node.to_json() for node in metrics])
        marks = []
        for producer, name in work.stage.exits.items():
            mark = executor.watermark(name)
            if mark is not None:
                marks.append({"node": producer, "watermark": mark})
        yield self._noted(NoteKind.MARK, marks)
        trimmed = [{"node": name, "rows": rows} for name, rows in self._trimmed.items() if rows]
        yield self._noted(NoteKind.TRIMMED, trimmed)

    @property
    def _executor(self) -> DagExecutor:
        """The stage's executor, restored when it resumes; created after all notes have arrived."""
        if self._cached_executor is None:
            stage = self._work.stage
            self._cached_executor = DagExecutor.from_dag(stage.dag, worker=self._worker)
            if self._work.resumes and stage.key is not None:
                self._cached_executor.restore(self._resumption.checkpoint(self._worker))
        return self._cached_executor

    def _notes(self, notes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Handle the notes for this task; forward all others."""
        handled = pc.is_in(notes.column(KIND), value_set=_TASK_NOTES)
        columns = [notes.filter(handled).column(name).to_pylist() for name in (KIND, NOTE, BLOB)]
        for kind, text, data in zip(*columns, strict=True):
            self._handle(NoteKind(kind), json.loads(text), data)
        forwarded = notes.filter(pc.invert(handled))
        if forwarded.num_rows:
            head = {name: forwarded.column(name) for name in HEAD}
            yield wire_format.filled(self._outgoing, forwarded.num_rows, head)

    def _handle(self, kind: NoteKind, note: Json, data: bytes | None) -> None:
        """Take the task's worker number, its saved state, or an earlier stage's watermark."""
        if kind is NoteKind.WORKER:
            self._worker = note["worker"]
        elif kind is NoteKind.STATE:
            for node, rows in self._resumption.take(StateRow.from_place(note, data)):
                self._waiting.setdefault(node, []).append(rows)
        else:
            inputs = self._work.stage.inputs
            sources = [entry.source for entry in inputs if entry.producer == note["node"]]
            for number, source in enumerate(self._work.inputs):
                if source in sources:
                    self._limits[number] = min(self._limits[number], note["watermark"])

    def _feed(self, batch: pa.RecordBatch, time: int | None) -> None:
        """Feed rows to the executor; ordered rows after the watermark of the first one."""
        if time is not None:
            self._advance(time)
        times = batch.column(AT)
        for number, (source, schema) in enumerate(
            zip(self._work.inputs, self._schemas, strict=True)
        ):
            rows = wire_format.unpacked(batch, number, schema)
            if rows is None:
                continue
            for event in self._events(rows, times, batch.column(wire_format.part(number)), time):
                self._executor.process_event(source, event)

    def _events(
        self, rows: pa.RecordBatch, times: pa.Array, structs: pa.Array, time: int | None
    ) -> Iterator[Event]:
        if TIME in rows.schema.names:
            least = pc.min(rows.column(TIME)).as_py()
            yield Event(0 if least is None else least, rows)
        elif self._work.ordered:
            assert time is not None
            yield Event(time, rows)
        else:
            times = times.filter(structs.is_valid()) if structs.null_count else times
            order = pc.sort_indices(times)
            for at, at_time in runs_of(rows.take(order), times.take(order)):
                yield Event(at, at_time)

    def _advance(self, time: int) -> None:
        for source, limit in zip(self._work.inputs, self._limits, strict=True):
            self._executor.process_watermark(source, min(time, limit))

    def _collect(self) -> Iterator[pa.RecordBatch]:
        for key, events in self._executor.take_all_sink_outputs().items():
            if key.kind is OutputKind.DATA:
                rows = _concat(events)
                self._waiting.setdefault(key.node, []).append(rows)
                self._rows += rows[0].num_rows
            else:
                yield self._noted(NoteKind.ASIDE, self._aside(key, events))
        if self._rows >= _FLUSH_ROWS:
            yield from self._flush()

    def _flush(self) -> Iterator[pa.RecordBatch]:
        for name, waiting in self._waiting.items():
            rows = pa.concat_batches([rows for rows, _ in waiting])
            times = pa.concat_arrays([times for _, times in waiting])
            if name in self._trimmed:
                rows, times = self._trim(name, rows, times)
            if rows.num_rows:
                yield wire_format.packed(self._outgoing, self._parts[name], times, rows)
        self._waiting, self._rows = {}, 0

    def _trim(self, name: str, rows: pa.RecordBatch, times: pa.Array) -> TimedRows:
        """Return a sink's rows in the range; early rows wait for a later run, if there is one."""
        work, count = self._work, rows.num_rows
        since, until = work.reach.since, work.reach.until
        if until is not None:
            early = pc.greater_equal(times, until)
            if work.keeps and pc.any(early).as_py():
                waiting = rows.filter(early), times.filter(early)
                self._ahead.setdefault(name, []).append(waiting)
                count -= waiting[0].num_rows
            rows, times = rows.filter(pc.invert(early)), times.filter(pc.invert(early))
        if since is not None:
            in_range = pc.greater_equal(times, since)
            if work.resumes and pc.any(pc.invert(in_range)).as_py():
                time = pc.min(times).as_py()
                message = (
                    f"{name} emitted a row at {time}, but all times before {since} are written; "
                    "use a longer lookahead"
                )
                raise LateOutput.create(message, node=name, time=time, worker=self._worker)
            rows, times = rows.filter(in_range), times.filter(in_range)
        self._trimmed[name] += count - rows.num_rows
        return rows, times

    def _aside(self, key: OutputKey, events: list[Event]) -> Iterator[Json]:
        head = {"node": key.node, "output": key.kind.value, "name": key.name}
        for event in events:
            for row in event.batch.to_pylist():
                time = row.pop(TIME, event.time)
                yield {
                    **head,
                    "worker": self._worker,
                    "time": time,
                    "row": wire_format.row_text(row),
                }

    def _noted(
        self, kind: NoteKind, notes: Iterable[object], blob: bytes | None = None
    ) -> pa.RecordBatch:
        return wire_format.noted(self._outgoing, kind, notes, blob)


def _concat(events: list[Event]) -> TimedRows:
    """Concatenate events; rows without a time of their own get that of their event."""
    batches, times = [], []
    for event in events:
        batch = event.batch
        event_times = constant(event.time, batch.num_rows)
        timed = TIME in batch.schema.names
        times.append(pc.coalesce(batch.column(TIME), event_times) if timed else event_times)
        batches.append(batch)
    return pa.concat_batches(batches), pa.concat_arrays(times)
