"""Bridge between recordings and graphs, in both directions.

A replay worker is an executor. The records of its recordings enter at a source, and its frontier
becomes the source's watermark. The rows and the watermark of a sink become the recording of one
worker again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from capstan.core.protocol import Messages
from capstan.core.times import Antichain
from capstan.interop.timely import Capture, Captured, EventPusher
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.graph.errors import SchemaMismatch
from capstan.pipeline.graph.events import TIME, Event
from capstan.pipeline.graph.graph import Node, NodeRef
from tests.reference.sink_recorder import SinkRecorder, watermark_of


class SinkCapture:
    """Records the output of one sink of an executor: its rows, and its watermark as progress.

    A row with one column is recorded as its value, any other row as the tuple of its columns. A
    column `_time` becomes the time of the messages and is not part of the record.
    """

    __slots__ = ("_capture", "_executor", "_recorder", "_sink")

    def __init__(
        self, executor: DagExecutor, sink: str, pusher: EventPusher, minimum: int = 0
    ) -> None:
        """Start a recording.

        Args:
            sink: Name of a node without readers.
            pusher: Destination of the events: an `EventLink`, an `EventWriter` or a connection.
        """
        self._executor = executor
        self._sink = sink
        self._recorder = SinkRecorder(sink, minimum)
        self._capture = Capture(pusher, (minimum,))

    @property
    def captured(self) -> Captured:
        """Statistics of the recording so far."""
        return self._capture.captured

    def drain(self) -> None:
        """Record the rows that the sink has emitted since the last call, and its watermark.

        Raises:
            LateOutput: The sink emitted rows at a time that it had completed.
            NodeNotFound: The executor has no such sink.
        """
        outputs = self._executor.take_sink_outputs(self._sink)
        watermark = self._executor.watermark(self._sink)
        for recorded in self._recorder.record(outputs, watermark):
            if recorded.rows is None:
                self._capture.output(recorded.event)
            else:
                assert isinstance(recorded.event, Messages)
                self._capture.messages(recorded.event.time, _records(recorded.rows))


class IntoExecutors:
    """Plays a replay into graphs: replay worker i into executor i; a consumer of `replay_into`.

    A record is a row of the source: a tuple has a value for each column that the source declares;
    any other record is the value of its one column. A column `_time` of the source gets the
    record's time. After each step, the outputs of the worker's sinks are recorded.
    """

    __slots__ = ("_captures", "_coordinate", "_executors", "_source")

    def __init__(
        self,
        executors: Sequence[DagExecutor],
        source: NodeRef,
        captures: Sequence[Sequence[SinkCapture]] = (),
        *,
        coordinate: int = 0,
    ) -> None:
        """Connect executors to their recordings.

        Args:
            executors: One executor per replay worker, all of the same graph.
            source: Source that receives the records; its schema names their columns.
            captures: Recorders of each replay worker's sinks; none by default.
            coordinate: Position of the coordinate that the graph uses as its time.
        """
        self._executors = tuple(executors)
        self._source = source
        self._captures = tuple(map(tuple, captures))
        self._coordinate = coordinate

    def messages(self, worker: int, messages: Messages) -> None:
        """Process records of a replay worker.

        Raises:
            SchemaMismatch: A record is not a row of the source.
            OperatorFailed: An operator raised, now or earlier.
            LateOutput: A sink emitted rows at a time that it had completed.
        """
        if messages.data:
            executor, time = self._executors[worker], messages.time[self._coordinate]
            batch = _rows(executor.dag.node(self._source), time, messages.data)
            executor.process_event(self._source, Event(time, batch))
        self._drain(worker)

    def advance(self, worker: int, frontier: Antichain) -> None:
        """Advance the frontier of a replay worker; an empty frontier ends its input.

        Raises:
            OperatorFailed: An operator raised, now or earlier.
            LateOutput: A sink emitted rows at a time that it had completed.
        """
        to = watermark_of(frontier, self._coordinate)
        self._executors[worker].process_watermark(self._source, to)
        self._drain(worker)

    def _drain(self, worker: int) -> None:
        for capture in self._captures[worker] if self._captures else ():
            capture.drain()


def _rows(source: Node, time: int, data: Sequence[object]) -> pa.RecordBatch:
    names = [name for name in source.schema.names if name != TIME]
    rows = [record if isinstance(record, tuple) else (record,) for record in data]
    try:
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        columns[TIME] = (time,) * len(rows)
        arrays = [pa.array(columns[column.name], column.type) for column in source.schema]
    # pyarrow raises ValueError and TypeError.
    except (ValueError, TypeError) as error:
        message = f"records at {source.name} do not match its columns {', '.join(names)}: {error}"
        raise SchemaMismatch.create(
            message, source=source.name, target=source.name, reason=str(error)
        ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=source.schema)


def _records(rows: pa.RecordBatch) -> list[object]:
    columns = [rows.column(name).to_pylist() for name in rows.schema.names if name != TIME]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
