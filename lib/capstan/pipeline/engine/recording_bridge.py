"""Recordings played into graphs, and what comes out of a graph as a recording.

A replay worker is an executor: the records of its recordings come to a source, and its frontier as
the source's watermark. A sink's rows and its watermark are the recording of one worker again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from capstan.core.protocol import Messages
from capstan.core.times import Antichain
from capstan.interop.timely import Capture, Captured, EventPusher
from capstan.pipeline.engine.executor import DagExecutor
from capstan.pipeline.engine.sink_recorder import SinkRecorder, watermark_of
from capstan.pipeline.graph.errors import SchemaMismatch
from capstan.pipeline.graph.events import TIME, Event
from capstan.pipeline.graph.graph import Node, NodeRef


class SinkCapture:
    """Records what one sink of an executor puts out: its rows, and its watermark as progress.

    A row of one column is recorded as its value, any other as the tuple of its columns; a column
    `_time` is the time of the messages, and no part of the record.
    """

    __slots__ = ("_capture", "_executor", "_recorder", "_sink")

    def __init__(
        self, executor: DagExecutor, sink: str, pusher: EventPusher, minimum: int = 0
    ) -> None:
        """Starts a recording.

        Args:
            executor: What runs.
            sink: The name of a node without readers.
            pusher: Where the events go: an `EventLink`, an `EventWriter`, a connection.
            minimum: The time at which the recording starts.
        """
        self._executor = executor
        self._sink = sink
        self._recorder = SinkRecorder(sink, minimum)
        self._capture = Capture(pusher, (minimum,))

    @property
    def captured(self) -> Captured:
        """What was recorded so far."""
        return self._capture.captured

    def drain(self) -> None:
        """Record what the sink has put out since the last call, and where it stands now.

        Raises:
            LateOutput: Rows at a time that was over already.
            NodeNotFound: The executor has no such sink.
        """
        outputs = self._executor.take_sink_outputs(self._sink)
        watermark = self._executor.watermark(self._sink)
        for each in self._recorder.record(outputs, watermark):
            if each.rows is None:
                self._capture.output(each.event)
            else:
                assert isinstance(each.event, Messages)
                self._capture.messages(each.event.time, _records(each.rows))


class IntoExecutors:
    """Plays a replay into graphs: replay worker i into executor i; a consumer of `replay_into`.

    A record is a row of the source: a tuple has a value for each column that the source declares,
    anything else is the one column. A column `_time` of the source gets the record's time. After
    each step all that the worker's sinks have put out is recorded.
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
        """What plays into what.

        Args:
            executors: One for each replay worker, of one graph.
            source: The source that the records come to; its schema names their columns.
            captures: Of each replay worker, what records its sinks; none by default.
            coordinate: The position of the coordinate that the graph takes as its time.
        """
        self._executors = tuple(executors)
        self._source = source
        self._captures = tuple(map(tuple, captures))
        self._coordinate = coordinate

    def messages(self, worker: int, messages: Messages) -> None:
        """Puts the records of a replay worker in.

        Raises:
            SchemaMismatch: A record is no row of the source.
            OperatorFailed: An operator raised, now or before.
            LateOutput: A sink put out rows at a time that was over already.
        """
        if messages.data:
            executor, time = self._executors[worker], messages.time[self._coordinate]
            batch = _rows(executor.dag.node(self._source), time, messages.data)
            executor.process_event(self._source, Event(time, batch))
        self._drain(worker)

    def advance(self, worker: int, frontier: Antichain) -> None:
        """Tells how far a replay worker has come; nothing comes after an empty frontier.

        Raises:
            OperatorFailed: An operator raised, now or before.
            LateOutput: A sink put out rows at a time that was over already.
        """
        to = watermark_of(frontier, self._coordinate)
        self._executors[worker].process_watermark(self._source, to)
        self._drain(worker)

    def _drain(self, worker: int) -> None:
        for capture in self._captures[worker] if self._captures else ():
            capture.drain()


def _rows(source: Node, time: int, data: Sequence[object]) -> pa.RecordBatch:
    names = [name for name in source.schema.names if name != TIME]
    rows = [each if isinstance(each, tuple) else (each,) for each in data]
    try:
        columns = dict(zip(names, zip(*rows, strict=True), strict=True))
        columns[TIME] = (time,) * len(rows)
        arrays = [pa.array(columns[each.name], each.type) for each in source.schema]
    # pyarrow's errors are ValueError and TypeError.
    except (ValueError, TypeError) as error:
        message = f"records at {source.name} are no rows of {', '.join(names)}: {error}"
        raise SchemaMismatch.create(
            message, source=source.name, target=source.name, reason=str(error)
        ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=source.schema)


def _records(rows: pa.RecordBatch) -> list[object]:
    columns = [rows.column(name).to_pylist() for name in rows.schema.names if name != TIME]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
