"""Read models of streams: frontiers, late rows, verification, violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.times import Coordinate, Kind
from capstan.errors import CapstanError
from capstan.reporting.frontier_history import Line, Progress, read_progress
from capstan.storage.delta import delta
from capstan.storage.delta.table_cache import VersionedCache
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.tape.feed import count_late
from capstan.storage.tape.tape import Cut, Tape, open_tape
from capstan.verify.verified_ledger import newest_rows
from capstan.verify.violations_ledger import KnownViolation, known_violations


@dataclass(frozen=True, slots=True)
class VerifiedState:
    """The verified part of a stream.

    Attributes:
        commit: The commit up to which all workers are verified.
        at: The time of the newest verification.
        workers: The last verified commit by worker.
    """

    commit: int
    at: datetime
    workers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class StreamView:
    """One stream.

    Attributes:
        name: The stream.
        description: The declared description; may be empty.
        cut: The newest commit of its tape.
        coordinates: The coordinates of its times; lines and lags use the last one.
        progress: The frontiers of its workers by commit.
        greatest: The greatest time of any record, in the last coordinate; None without records.
        late: The number of late rows by reason.
        checked: The verified part; None when some worker was never verified.
        violations: Known violations of the protocol.
        written: The time of the newest file of the index.
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
        """The coordinate of lines and lags."""
        return self.coordinates[-1]

    @property
    def closed(self) -> bool:
        """Whether every worker is closed."""
        return bool(self.progress.lines) and self.frontier is None

    @property
    def frontier(self) -> int | None:
        """The least value that any worker holds; None when nothing is held."""
        return min(
            (line.last for line in self.progress.lines if line.last is not None), default=None
        )

    def label(self, worker: int | None) -> str:
        """The label of a worker; its number when it is unknown."""
        labels = {line.worker: line.label for line in self.progress.lines}
        return "none" if worker is None else labels.get(worker, str(worker))

    @property
    def behind(self) -> int | None:
        """The lag of the stream's frontier behind the greatest time on tape; None when closed."""
        return self._lag(self.frontier)

    def lag(self, line: Line) -> int | None:
        """The lag of a worker's frontier behind the greatest time on tape; None when closed."""
        return self._lag(line.last)

    def _lag(self, held: int | None) -> int | None:
        if held is None or self.greatest is None or held == self.coordinate.minimum:
            return None
        return max(0, self.greatest - held)


@dataclass(frozen=True, slots=True)
class Payload:
    """The stored records of a stream.

    Attributes:
        columns: The payload columns with their types.
        files: The number of files.
        bytes: The size of the files.
    """

    columns: tuple[tuple[str, str], ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class NoView:
    """A stream without a readable tape.

    Attributes:
        name: The stream.
        description: The declared description; may be empty.
        error: The error of its tape; None when it was not captured yet.
    """

    name: str
    description: str
    error: CapstanError | None = None


_AT_ONCE = 8
_CACHE: VersionedCache[StreamView] = VersionedCache()
_Violations = dict[tuple[str, str], tuple[KnownViolation, ...]]
"""Known violations by stream and tape."""
_VIOLATIONS: VersionedCache[_Violations] = VersionedCache()


def stream_names(lake: Lake, declarations: ProjectConfig) -> list[str]:
    """The names of captured and declared streams, sorted."""
    return sorted({*lake.streams(), *declarations.streams})


def view_stream(lake: Lake, declarations: ProjectConfig, name: str) -> StreamView | NoView:
    """Read a stream; errors of its tape are part of the result."""
    paths = lake.stream(name)
    declared = declarations.streams.get(name)
    about = declared.description if declared else ""
    newest = newest_entry(paths.events)
    if not newest:
        return NoView(name, about)
    try:
        others = (paths.late, lake.ledger("verified"), lake.ledger("findings"))
        state = (newest, about, *map(newest_entry, others))
        return _CACHE.get((lake.root, name), state, lambda: _view(lake, name, about))
    except CapstanError as error:
        return NoView(name, about, error)


def view_streams(
    lake: Lake, declarations: ProjectConfig, names: Sequence[str]
) -> list[StreamView | NoView]:
    """Read several streams concurrently; they keep their order."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(lambda name: view_stream(lake, declarations, name), names))


def view_payload(lake: Lake, name: str) -> Payload:
    """Read the facts of a stream's records from the log of their table."""
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
    times = greatest_times(files, tape.time_type.coordinates[-1])
    written = pc.max(files["modification_time"]).as_py() if files.num_rows else None
    return StreamView(
        name=tape.name,
        description=about,
        cut=cut,
        coordinates=tape.time_type.coordinates,
        progress=progress,
        # By the bounds of files, to the millisecond.
        greatest=None if times is None else pc.max(times).as_py(),
        late=count_late(tape, cut),
        checked=_verified_state(lake, tape, cut, progress),
        violations=_violations(lake).get((tape.name, str(table.metadata().id)), ()),
        written=None if written is None else datetime.fromtimestamp(written / 1000, UTC),
    )


def greatest_times(files: pa.Table, coordinate: Coordinate) -> pa.ChunkedArray | None:
    """The greatest time of each file's messages events, as integers; None without bounds."""
    name = f"max.time.{coordinate.name}"
    if name not in files.column_names:
        return None
    column = files[name]
    if coordinate.kind is Kind.TIMESTAMP:
        column = column.cast(pa.timestamp("us", column.type.tz))
    elif coordinate.kind is Kind.DATE:
        column = column.cast(pa.int32())
    return column.cast(pa.int64())


def _verified_state(lake: Lake, tape: Tape, cut: Cut, progress: Progress) -> VerifiedState | None:
    if not progress.lines:
        return None
    opened = {line.worker: line.opened for line in progress.lines}
    rows = newest_rows(lake, tape, cut.commit, opened, ["at"])
    if any(line.worker not in rows for line in progress.lines):
        return None
    rows.pop(None, None)
    workers = {w: int(str(row["commit"])) for w, row in rows.items() if w is not None}
    times = [row["at"] for row in rows.values() if isinstance(row["at"], datetime)]
    return VerifiedState(min(workers.values()), max(times), workers)


def _violations(lake: Lake) -> _Violations:
    newest = newest_entry(lake.ledger("findings"))
    return _VIOLATIONS.get(lake.root, newest, lambda: _read_violations(lake))


def _read_violations(lake: Lake) -> _Violations:
    by_tape: _Violations = {}
    for violation in known_violations(lake):
        key = violation.stream, violation.tape
        by_tape[key] = (*by_tape.get(key, ()), violation)
    return by_tape
