"""What one task of a stage does: a `DagExecutor` over the rows that came to one replay worker."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.graph.errors import LateOutput
from capstan.pipeline.graph.events import END, TIME, Event, OutputKey, OutputKind
from capstan.pipeline.graph.graph import Dag
from capstan.pipeline.graph.stage_planner import Stage
from capstan.pipeline.input_range import Reach
from capstan.pipeline.spark import wire_format
from capstan.pipeline.spark.state_rows import Resumption, StateRow, rows_to_keep
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

_ENOUGH = 10_000
_MEANT = pa.array([kind.value for kind in (NoteKind.WORKER, NoteKind.STATE, NoteKind.MARK)])


@dataclass(frozen=True, slots=True)
class StageWork:
    """What every task of a stage has to know.

    Attributes:
        stage: The stage; its sub-graph runs here.
        inputs: The sources of the sub-graph, in order of the parts of the rows that come in.
        ordered: Whether rows come in order of time; else watermarks wait until the end.
        last: The watermark after the last row, where the inputs promise no less.
        since: The first time of results that are kept; None where there is no bound.
        until: The first time of results that are no longer kept; None where there is no bound.
        peers: How many replay workers run the stage, where it has a key.
        resumes: Whether the tasks go on from a state that they are given.
        keeps: Whether they put out their state, and what has come out too early, at the end.
    """

    stage: Stage
    inputs: tuple[str, ...]
    ordered: bool
    last: int
    since: int | None = None
    until: int | None = None
    peers: int = 1
    resumes: bool = False
    keeps: bool = False

    @classmethod
    def of(
        cls, dag: Dag, stage: Stage, reach: Reach, peers: int, *, resumes: bool, keeps: bool
    ) -> StageWork:
        """The work of a stage of `dag`: its own sources come first, then what others put out."""
        own = [name for name in stage.nodes if not dag.inputs(name)]
        inputs = (*own, *(entry.source for entry in stage.inputs))
        bounds = reach.last, reach.since, reach.until
        # Known from here on: tasks may see the text of the code otherwise, or not at all.
        _ = stage.dag.signatures
        return cls(stage, inputs, stage.key is not None, *bounds, peers, resumes, keeps)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The sinks of the sub-graph whose rows leave the stage, in order of their parts.

        First those that other stages read, in order of `stage.outputs`, then `stage.sinks`.
        """
        return (*(self.stage.exits[name] for name in self.stage.outputs), *self.stage.sinks)

    @property
    def incoming(self) -> pa.Schema:
        """The columns of the rows that come in."""
        return wire_format.travelling([self.stage.dag.node(name).schema for name in self.inputs])

    @property
    def outgoing(self) -> pa.Schema:
        """The columns of the rows that go out."""
        return wire_format.travelling([self.stage.dag.node(name).schema for name in self.outputs])

    def part_of(self, node: str) -> int:
        """The part in which the rows of a node leave the stage."""
        return self.outputs.index(self.stage.exits.get(node, node))

    def run(self, batches: Iterable[pa.RecordBatch], worker: int) -> Iterator[pa.RecordBatch]:
        """Run the stage for one worker.

        Args:
            batches: Rows as `incoming` has them. Notes come first; those of other stages pass
                through.
            worker: The replay worker, where no note among the rows says which one it is.

        Raises:
            OperatorFailed: An operator raised; node, time and worker are in its fields.
            LateOutput: A row came out at a time that an earlier run has written already.
            NotWhole: The state to go on from is not all there, or does not fit.
        """
        task = _Task(self, worker)
        for batch in batches:
            yield from task.take(batch)
        yield from task.finish()


class _Task:
    """One worker's run of a stage."""

    def __init__(self, work: StageWork, worker: int) -> None:
        self._work = work
        self._worker = worker
        self._made: DagExecutor | None = None
        self._schemas = [work.stage.dag.node(name).schema for name in work.inputs]
        self._timed = all(TIME in schema.names for schema in self._schemas)
        self._outgoing = work.outgoing
        self._parts = {name: number for number, name in enumerate(work.outputs)}
        self._known = Resumption(work.stage, work.peers)
        self._waiting: dict[str, list[TimedRows]] = {}
        self._ahead: dict[str, list[TimedRows]] = {}
        self._rows = 0
        self._trimmed: dict[str, int] = dict.fromkeys(work.stage.sinks, 0)
        self._limits = [work.last] * len(work.inputs)

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take in rows; what there is to put out."""
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
        # Where rows have no times of their own, an event has the rows of one time; and where
        # operators have timers, those that are due come before the rows of the next time.
        runs = pc.run_end_encode(times)
        start = 0
        for time, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            self._feed(batch.slice(start, end - start), time)
            yield from self._collect()
            start = end

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Tell the executor how far everything has come, and say what was counted."""
        self._advance(END)
        yield from self._collect()
        yield from self._flush()
        work, executor = self._work, self._executor
        if work.keeps:
            for row in rows_to_keep(work.stage, self._worker, executor, self._ahead):
                yield self._noted(NoteKind.STATE, [row.place()], row.data)
        metrics = [
            NodeMetrics(work.stage.number, self._worker, name, executor.node_metrics(name))
            for name in work.stage.nodes
        ]
        yield self._noted(NoteKind.METRICS, [each.to_json() for each in metrics])
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
        """Runs the stage, from where an earlier run has ended; notes come before all rows."""
        if self._made is None:
            stage = self._work.stage
            self._made = DagExecutor.from_dag(stage.dag, worker=self._worker)
            if self._work.resumes and stage.key is not None:
                self._made.restore(self._known.checkpoint(self._worker))
        return self._made

    def _notes(self, notes: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Learn from notes what is meant for this task; pass on all else."""
        mine = pc.is_in(notes.column(KIND), value_set=_MEANT)
        said = [notes.filter(mine).column(name).to_pylist() for name in (KIND, NOTE, BLOB)]
        for kind, text, data in zip(*said, strict=True):
            self._learn(NoteKind(kind), json.loads(text), data)
        passed = notes.filter(pc.invert(mine))
        if passed.num_rows:
            parts = list(self._outgoing)[len(HEAD) :]
            nothing = [pa.nulls(passed.num_rows, field.type) for field in parts]
            head = [passed.column(name) for name in HEAD]
            yield pa.RecordBatch.from_arrays([*head, *nothing], schema=self._outgoing)

    def _learn(self, kind: NoteKind, said: Mapping[str, object], data: bytes | None) -> None:
        """Learn who this is, what was known before, how far earlier stages have come."""
        if kind is NoteKind.WORKER:
            self._worker = int(str(said["worker"]))
        elif kind is NoteKind.STATE:
            for node, rows in self._known.take(StateRow.of_place(said, data)):
                self._waiting.setdefault(node, []).append(rows)
        else:
            for number, source in enumerate(self._work.inputs):
                if said["node"] == _producer(self._work.stage, source):
                    mark = int(str(said["watermark"]))
                    self._limits[number] = min(self._limits[number], mark)

    def _feed(self, batch: pa.RecordBatch, time: int | None) -> None:
        """Put rows in; in order of time, all before the first one of them is complete."""
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
            own = times.filter(structs.is_valid()) if structs.null_count else times
            yield from _by_time(rows, own)

    def _advance(self, time: int) -> None:
        for source, limit in zip(self._work.inputs, self._limits, strict=True):
            self._executor.process_watermark(source, min(time, limit))

    def _collect(self) -> Iterator[pa.RecordBatch]:
        for key, events in self._executor.take_all_sink_outputs().items():
            if key.kind is OutputKind.DATA:
                rows = _together(events)
                self._waiting.setdefault(key.node, []).append(rows)
                self._rows += rows[0].num_rows
            else:
                yield self._noted(NoteKind.ASIDE, self._aside(key, events))
        if self._rows >= _ENOUGH:
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
        """The rows of a sink that are written; those that come too early wait, if they can."""
        work, count = self._work, rows.num_rows
        if work.until is not None:
            early = pc.greater_equal(times, work.until)
            if work.keeps and pc.any(early).as_py():
                waiting = rows.filter(early), times.filter(early)
                self._ahead.setdefault(name, []).append(waiting)
                count -= waiting[0].num_rows
            rows, times = rows.filter(pc.invert(early)), times.filter(pc.invert(early))
        if work.since is not None:
            due = pc.greater_equal(times, work.since)
            if work.resumes and pc.any(pc.invert(due)).as_py():
                raise _late(name, pc.min(times).as_py(), work.since, self._worker)
            rows, times = rows.filter(due), times.filter(due)
        self._trimmed[name] += count - rows.num_rows
        return rows, times

    def _aside(self, key: OutputKey, events: list[Event]) -> Iterator[Mapping[str, object]]:
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


def _producer(stage: Stage, source: str) -> str | None:
    return next((entry.producer for entry in stage.inputs if entry.source == source), None)


def _by_time(rows: pa.RecordBatch, times: pa.Array) -> Iterator[Event]:
    order = pc.sort_indices(times)
    rows, runs = rows.take(order), pc.run_end_encode(times.take(order))
    start = 0
    for time, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield Event(time, rows.slice(start, end - start))
        start = end


def _late(node: str, time: int, since: int, worker: int) -> LateOutput:
    return LateOutput.create(
        f"{node} put out a row at {time}, and all before {since} is written: a longer lookahead "
        "would have waited for it",
        node=node,
        time=time,
        worker=worker,
    )


def _together(events: list[Event]) -> TimedRows:
    """The rows of events, and their times: their own, and where these are not known the event's."""
    batches, times = [], []
    for event in events:
        batch = event.batch
        own = pa.repeat(pa.scalar(event.time, pa.int64()), batch.num_rows)
        timed = TIME in batch.schema.names
        times.append(pc.coalesce(batch.column(TIME), own) if timed else own)
        batches.append(batch)
    return pa.concat_batches(batches), pa.concat_arrays(times)
