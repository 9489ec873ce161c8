"""Conversion of frontiers to watermarks, and of a sink's output to a valid recording.

A sink at watermark `w` can still emit anything at `w` or later. So it holds one capability: first
at the minimum time, then at its watermark, and none after the end. Follows timely dataflow's
`capture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.protocol import Messages, Progress
from capstan.core.times import Antichain, Time
from capstan.pipeline.graph.errors import LateOutput
from capstan.pipeline.graph.events import END, TIME, Event, runs_of


def watermark_of(frontier: Antichain, coordinate: int = 0) -> int:
    """Return the watermark of a frontier: nothing before it can arrive.

    Args:
        frontier: Frontier of one or more recordings.
        coordinate: Position of the coordinate that a pipeline uses as its time.

    Returns:
        The least value of the coordinate in the frontier; `END` when the frontier is empty.

    >>> watermark_of(Antichain.of([(3, 10), (4, 7)]), 1)
    7
    """
    return min((time[coordinate] for time in frontier), default=END)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of a recording, with its rows.

    Attributes:
        event: Progress, or messages with the number of rows.
        rows: Rows of the messages, or None.
    """

    event: Progress | Messages
    rows: pa.RecordBatch | None = None


class SinkRecorder:
    """Turns the output of one sink into the events of one worker's recording.

    Attributes:
        sink: Name of the sink, for errors.
        held: Time of the held capability, or None after the end of the sink.
    """

    __slots__ = ("held", "sink")

    def __init__(self, sink: str, minimum: int = 0) -> None:
        self.sink = sink
        self.held: int | None = minimum

    def record(self, outputs: Iterable[Event], watermark: int | None) -> Iterator[Recorded]:
        """Yield the events for a sink's output since the last call, and for its watermark.

        Args:
            outputs: Result of `take_sink_outputs`, after any number of events and watermarks.
            watermark: Watermark of the sink when its outputs were taken.

        Yields:
            Messages for each time of each batch, by time; then progress if the watermark has moved.

        Raises:
            LateOutput: Rows have a time that the recording has declared complete.
        """
        for output in outputs:
            for time, rows in _by_time(output):
                if self.held is None or time < self.held:
                    raise LateOutput.create(
                        f"{self.sink} emitted rows at {time}, but "
                        f"{'has ended' if self.held is None else f'was at {self.held}'}",
                        node=self.sink,
                        time=time,
                    )
                yield Recorded(Messages((Time.of(time),), rows.num_rows), rows)
        held, self.held = self.held, self._after(watermark)
        if held != self.held and held is not None:
            raised = [] if self.held is None else [((self.held,), 1)]
            yield Recorded(Progress.of([*raised, ((held,), -1)]))

    def _after(self, watermark: int | None) -> int | None:
        if watermark == END or self.held is None:
            return None
        return self.held if watermark is None else max(self.held, watermark)


def _by_time(output: Event) -> Iterator[tuple[int, pa.RecordBatch]]:
    if TIME not in output.batch.schema.names:
        yield output.time, output.batch
        return
    order = pc.sort_indices(output.batch, sort_keys=[(TIME, "ascending")])
    batch = output.batch.take(order)
    yield from runs_of(batch, batch.column(TIME))
