"""Streams as a page shows them: who is how far, what is late, what was verified, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.times import Coordinate, Kind
from capstan.errors import CapstanError
from capstan.reporting.frontier_history import Line, Progress, read_progress
from capstan.storage import delta
from capstan.storage.arrow_scan import read_columns
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.table_cache import VersionedCache
from capstan.storage.tape.feed import count_late
from capstan.storage.tape.tape import Cut, Tape, open_tape
from capstan.verify.violations_ledger import KnownViolation, known_violations


@dataclass(frozen=True, slots=True)
class VerifiedState:
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
        progress: How its workers' frontiers moved.
        greatest: The greatest time of any record, in the last coordinate; None without records.
        late: Late rows by reason.
        checked: What was last found sound; None where some worker never was.
        violations: Where recordings break a rule, as far as somebody has looked.
        written: When the newest file of the index was written.
    """

    name: str
    description: str
    cut: Cut
    coordinates: tuple[Coordinate, ...]
    progress: Progress
    greatest: int | None
    late: Mapping[str, int]
    checked: VerifiedState | None
    violations: tuple[KnownViolation, ...]
    written: datetime | None

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

    def label(self, worker: int | None) -> str:
        """What a worker stands for; its number where the tape has none of that number."""
        labels = {line.worker: line.label for line in self.progress.lines}
        return "none" if worker is None else labels.get(worker, str(worker))

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
class Payload:
    """What a page shows of the records of a stream.

    Attributes:
        columns: The stream's own columns with their types.
        files: Files that they lie in.
        bytes: The size of these.
    """

    columns: tuple[tuple[str, str], ...]
    files: int
    bytes: int


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


_AT_ONCE = 8
_KEPT: VersionedCache[StreamView] = VersionedCache()
_Sound = dict[tuple[str, str], dict[int, tuple[int, datetime]]]
"""By stream and tape, of each worker up to which commit it was found sound, and when."""
_SOUND: VersionedCache[_Sound] = VersionedCache()
_Broken = dict[tuple[str, str], tuple[KnownViolation, ...]]
"""By stream and tape the violations that stand."""
_BROKEN: VersionedCache[_Broken] = VersionedCache()


def stream_names(lake: Lake, declarations: ProjectConfig) -> list[str]:
    """The streams on tape and the declared ones, sorted."""
    return sorted({*lake.streams(), *declarations.streams})


def view_stream(lake: Lake, declarations: ProjectConfig, name: str) -> StreamView | NoView:
    """What a page shows of a stream; one that cannot be read does not hide the others.

    Raises:
        InvalidRequestError: `CAP-NAME` for what cannot name a stream.
    """
    paths = lake.stream(name)
    declared = declarations.streams.get(name)
    about = declared.description if declared else ""
    newest = newest_entry(paths.events)
    if not newest:
        return NoView(name, about)
    try:
        others = (paths.late, lake.ledger("verified"), lake.ledger("findings"))
        state = (newest, about, *map(newest_entry, others))
        return _KEPT.get((lake.root, name), state, lambda: _view(lake, name, about))
    except CapstanError as error:
        return NoView(name, about, error)


def view_streams(
    lake: Lake, declarations: ProjectConfig, names: Sequence[str]
) -> list[StreamView | NoView]:
    """What a page shows of several streams, in their order; several are read at a time."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(lambda name: view_stream(lake, declarations, name), names))


def view_payload(lake: Lake, name: str) -> Payload:
    """What a page shows of the records of a stream on tape, told from the log of their table."""
    records = delta.open_table(lake.stream(name).records)
    files = pa.table(records.get_add_actions())
    schema: pa.Schema = pa.schema(records.schema().to_arrow())
    data = schema.field("data").type
    columns = tuple((data.field(i).name, str(data.field(i).type)) for i in range(data.num_fields))
    return Payload(columns, files.num_rows, pc.sum(files["size_bytes"]).as_py() or 0)


def _view(lake: Lake, name: str, about: str) -> StreamView:
    table = delta.open_table(lake.stream(name).events)
    tape = open_tape(lake, name, table)
    files = pa.table(table.get_add_actions(flatten=True))
    commits, batches = delta.stat(files, "max.commit"), delta.stat(files, "max.batch")
    cut = Cut(max(commits, default=-1), max(batches, default=-1))
    progress = read_progress(tape, cut, events=table)
    last = tape.time_type.coordinates[-1]
    return StreamView(
        name=tape.name,
        description=about,
        cut=cut,
        coordinates=tape.time_type.coordinates,
        progress=progress,
        greatest=_greatest(files, last),
        late=count_late(tape, cut),
        checked=_checked(lake, tape, table, progress),
        violations=_broken(lake).get((tape.name, str(table.metadata().id)), ()),
        written=_written(files),
    )


def _greatest(files: pa.Table, coordinate: Coordinate) -> int | None:
    """The greatest time of any messages event, by the bounds of files, to the millisecond."""
    column = greatest_times(files, coordinate)
    found = None if column is None else pc.max(column).as_py()
    return None if found is None else int(found)


def greatest_times(files: pa.Table, coordinate: Coordinate) -> pa.ChunkedArray | None:
    """The greatest time of each file's messages events, as integers; None where none has bounds."""
    name = f"max.time.{coordinate.name}"
    if name not in files.column_names:
        return None
    column = files[name]
    if coordinate.kind is Kind.TIMESTAMP:
        column = column.cast(pa.timestamp("us", column.type.tz))
    elif coordinate.kind is Kind.DATE:
        column = column.cast(pa.int32())
    return column.cast(pa.int64())


def _written(files: pa.Table) -> datetime | None:
    newest = pc.max(files["modification_time"]).as_py() if files.num_rows else None
    return None if newest is None else datetime.fromtimestamp(newest / 1000, UTC)


def _checked(
    lake: Lake, tape: Tape, table: deltalake.DeltaTable, progress: Progress
) -> VerifiedState | None:
    if not progress.lines:
        return None
    known = _sound(lake).get((tape.name, str(table.metadata().id)), {})
    if any(line.worker not in known for line in progress.lines):
        return None
    workers = {worker: commit for worker, (commit, _) in known.items()}
    return VerifiedState(min(workers.values()), max(at for _, at in known.values()), workers)


def _sound(lake: Lake) -> _Sound:
    newest = newest_entry(lake.ledger("verified"))
    return _SOUND.get(lake.root, newest, lambda: _read_sound(lake) if newest else {})


def _read_sound(lake: Lake) -> _Sound:
    """What the ledger says of all tapes: a lake with many reads it once, and not once for each."""
    rows = read_columns(lake.ledger("verified"), ["stream", "tape", "worker", "commit", "at"])
    wanted = [("commit", "max"), ("at", "max")]
    found: _Sound = {}
    for row in rows.group_by(["stream", "tape", "worker"]).aggregate(wanted).to_pylist():
        if row["worker"] is not None:
            own = found.setdefault((row["stream"], row["tape"]), {})
            own[row["worker"]] = int(row["commit_max"]), row["at_max"]
    return found


def _broken(lake: Lake) -> _Broken:
    newest = newest_entry(lake.ledger("findings"))
    return _BROKEN.get(lake.root, newest, lambda: _read_broken(lake))


def _read_broken(lake: Lake) -> _Broken:
    found: _Broken = {}
    for each in known_violations(lake):
        own = found.get((each.stream, each.tape), ())
        found[each.stream, each.tape] = (*own, each)
    return found
