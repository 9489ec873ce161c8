"""Streams as a page shows them: who is how far, what is late, what was verified, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from capstan.declare import Declarations
from capstan.errors import CapstanError
from capstan.tape import delta
from capstan.tape.feed import count_late
from capstan.tape.lake import Lake, is_table
from capstan.tape.tape import Cut, Tape, open_tape
from capstan.times import Coordinate, Kind
from capstan.views.kept import Kept, newest_entry
from capstan.views.progress import Line, Progress, read_progress


@dataclass(frozen=True, slots=True)
class Checked:
    """What was last found sound of a stream.

    Attributes:
        commit: Every worker's recording was found sound up to this commit.
        at: When the newest of these checks was made.
        workers: The same by worker.
    """

    commit: int
    at: datetime
    workers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StreamView:
    """What a page shows of one stream.

    Attributes:
        name: The stream.
        description: What is declared of it; empty where nothing is.
        cut: The newest commit of its tape.
        coordinates: The coordinates of its times; lines and lags are of the last one.
        columns: Its own columns with their types.
        progress: How its workers' frontiers moved.
        greatest: The greatest time of any record, in the last coordinate; None without records.
        late: Late rows by reason.
        checked: What was last found sound; None where some worker never was.
        written: When the newest file of the index was written.
        files: Files of the payload.
        bytes: Their size.
    """

    name: str
    description: str
    cut: Cut
    coordinates: tuple[Coordinate, ...]
    columns: tuple[tuple[str, str], ...]
    progress: Progress
    greatest: int | None
    late: Mapping[str, int]
    checked: Checked | None
    written: datetime | None
    files: int
    bytes: int

    @property
    def coordinate(self) -> Coordinate:
        """The coordinate that lines and lags are of."""
        return self.coordinates[-1]

    @property
    def closed(self) -> bool:
        """Whether every worker is closed."""
        return bool(self.progress.lines) and self.frontier is None

    @property
    def frontier(self) -> int | None:
        """The least value that any worker still holds; None when nothing is held."""
        return min(
            (line.last for line in self.progress.lines if line.last is not None), default=None
        )

    @property
    def behind(self) -> int | None:
        """How far the stream's frontier is behind the greatest time on tape; None when closed."""
        if self.frontier is None or self.greatest is None:
            return None
        return (
            None
            if self.frontier == self.coordinate.minimum
            else max(0, self.greatest - self.frontier)
        )

    def lag(self, line: Line) -> int | None:
        """How far a worker's frontier is behind the greatest time on tape; None when closed."""
        if line.last is None or self.greatest is None or line.last == self.coordinate.minimum:
            return None
        return max(0, self.greatest - line.last)


@dataclass(frozen=True, slots=True)
class NoView:
    """A stream that there is no tape of, or none that can be read.

    Attributes:
        name: The stream.
        description: What is declared of it.
        error: What is wrong with its tape; None where it was not captured yet.
    """

    name: str
    description: str
    error: CapstanError | None = None


_AT_ONCE = 4
_KEPT: Kept[StreamView] = Kept()


def stream_names(lake: Lake, declarations: Declarations) -> list[str]:
    """The streams on tape and the declared ones, sorted."""
    return sorted({*lake.streams(), *declarations.streams})


def view_stream(lake: Lake, declarations: Declarations, name: str) -> StreamView | NoView:
    """What a page shows of a stream; one that cannot be read does not hide the others.

    Raises:
        BadRequest: `CAP-NAME` for what cannot name a stream.
    """
    paths = lake.stream(name)
    declared = declarations.streams.get(name)
    about = declared.description if declared else ""
    if not is_table(paths.events):
        return NoView(name, about)
    try:
        others = (paths.records, paths.late, lake.ledger("verified"))
        table = delta.open_table(paths.events)
        state = (table.metadata().id, table.version(), about, *map(newest_entry, others))
        return _KEPT.get((lake.root, name), state, lambda: _view(lake, name, about, table))
    except CapstanError as error:
        return NoView(name, about, error)


def view_streams(
    lake: Lake, declarations: Declarations, names: Sequence[str]
) -> list[StreamView | NoView]:
    """What a page shows of several streams, in their order; several are read at a time."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(lambda name: view_stream(lake, declarations, name), names))


def _view(lake: Lake, name: str, about: str, table: deltalake.DeltaTable) -> StreamView:
    tape = open_tape(lake, name, table)
    files = pa.table(table.get_add_actions(flatten=True))
    records = delta.open_table(tape.paths.records)
    payload = pa.table(records.get_add_actions(flatten=True))
    commits, batches = delta.stat(files, "max.commit"), delta.stat(files, "max.batch")
    cut = Cut(max(commits, default=-1), max(batches, default=-1))
    progress = read_progress(tape, cut, events=table)
    last = tape.time_type.coordinates[-1]
    return StreamView(
        name=tape.name,
        description=about,
        cut=cut,
        coordinates=tape.time_type.coordinates,
        columns=_columns(records),
        progress=progress,
        greatest=_greatest(files, last),
        late=count_late(tape, cut),
        checked=_checked(lake, tape, table, progress),
        written=_written(files),
        files=payload.num_rows,
        bytes=pc.sum(payload["size_bytes"]).as_py() or 0,
    )


def _greatest(files: pa.Table, coordinate: Coordinate) -> int | None:
    """The greatest time of any messages event, by the bounds of files, to the millisecond."""
    name = f"max.time.{coordinate.name}"
    if name not in files.column_names:
        return None
    column = files[name]
    if coordinate.kind is Kind.TIMESTAMP:
        column = column.cast(pa.timestamp("us", column.type.tz))
    elif coordinate.kind is Kind.DATE:
        column = column.cast(pa.int32())
    found = pc.max(column.cast(pa.int64())).as_py()
    return None if found is None else int(found)


def _written(files: pa.Table) -> datetime | None:
    newest = pc.max(files["modification_time"]).as_py() if files.num_rows else None
    return None if newest is None else datetime.fromtimestamp(newest / 1000, UTC)


def _checked(
    lake: Lake, tape: Tape, table: deltalake.DeltaTable, progress: Progress
) -> Checked | None:
    path = lake.ledger("verified")
    if not is_table(path) or not progress.lines:
        return None
    wanted = (dataset.field("stream") == tape.name) & (
        dataset.field("tape") == str(table.metadata().id)
    )
    found = delta.open_table(path).to_pyarrow_dataset()
    rows = pa.table(found.to_table(columns=["worker", "commit", "at"], filter=wanted))
    grouped = rows.group_by("worker").aggregate([("commit", "max"), ("at", "max")]).to_pylist()
    known = {row["worker"]: row for row in grouped if row["worker"] is not None}
    workers = {worker: int(row["commit_max"]) for worker, row in known.items()}
    if any(line.worker not in workers for line in progress.lines):
        return None
    return Checked(min(workers.values()), max(row["at_max"] for row in known.values()), workers)


def _columns(records: deltalake.DeltaTable) -> tuple[tuple[str, str], ...]:
    """The stream's own columns, each with the Arrow name of its type."""
    schema: pa.Schema = records.to_pyarrow_dataset().schema
    data = schema.field("data").type
    return tuple((data.field(i).name, str(data.field(i).type)) for i in range(data.num_fields))
