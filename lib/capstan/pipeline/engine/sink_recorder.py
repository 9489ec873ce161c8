"""From frontiers to watermarks, and from what a sink puts out back to a valid recording.

A sink at watermark `w` can still put out anything at `w` or later, so it holds one capability: at
the minimum time at first, then at its watermark, and none after the end. Source of the idea:
timely dataflow's `capture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.protocol import Messages, Progress
from capstan.core.times import Antichain, Time
from capstan.pipeline.graph.errors import LateOutput
from capstan.pipeline.graph.events import END, TIME, Event


def watermark_of(frontier: Antichain, coordinate: int = 0) -> int:
    """The watermark that a frontier means: nothing before it can come any more.

    Args:
        frontier: Of a recording, or of several together.
        coordinate: The position of the coordinate that a pipeline takes as its time.

    Returns:
        The least value of the coordinate in the frontier; `END` when the frontier is empty.

    >>> watermark_of(Antichain.of([(3, 10), (4, 7)]), 1)
    7
    """
    return min((time[coordinate] for time in frontier), default=END)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of a recording, and the rows that it stands for.

    Attributes:
        event: Progress, or messages that count their rows.
        rows: The rows of messages, or None.
    """

    event: Progress | Messages
    rows: pa.RecordBatch | None = None


class SinkRecorder:
    """Turns what comes out of one sink into the events of one worker's recording.

    Attributes:
        sink: Its name, for errors.
        minimum: The time at which the recording starts.
        held: The time that is held, or None once the sink has come to its end.
    """

    __slots__ = ("held", "minimum", "sink")

    def __init__(self, sink: str, minimum: int = 0) -> None:
        self.sink = sink
        self.minimum = minimum
        self.held: int | None = minimum

    def record(self, outputs: Iterable[Event], watermark: int | None) -> Iterator[Recorded]:
        """The events for what a sink put out since the last call, and for its watermark now.

        Args:
            outputs: What `take_sink_outputs` gave, after any number of events and watermarks.
            watermark: Of the sink, when its outputs were taken.

        Yields:
            Messages for each time of each batch, by time; then progress, if the watermark moved.

        Raises:
            LateOutput: Rows at a time that the recording has declared complete.
        """
        for output in outputs:
            for time, rows in _by_time(output):
                if self.held is None or time < self.held:
                    raise LateOutput.create(
                        f"{self.sink} put out rows at {time}, and "
                        f"{'has ended' if self.held is None else f'was at {self.held}'}",
                        node=self.sink,
                        time=time,
                    )
                yield Recorded(Messages(Time.of(time), rows.num_rows), rows)
        held, self.held = self.held, self._after(watermark)
        if held != self.held and held is not None:
            up = [] if self.held is None else [((self.held,), 1)]
            yield Recorded(Progress.of([*up, ((held,), -1)]))

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
    runs = pc.run_end_encode(batch.column(TIME))
    start = 0
    for time, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield time, batch.slice(start, end - start)
        start = end
