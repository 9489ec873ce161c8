"""Read models of streams: workers and frontiers at a cut, verification, violations, history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.json_object import Json
from capstan.core.times import Antichain, Coordinate, Kind, TimeType
from capstan.errors import CapstanError
from capstan.reporting.frontier_history import TapeProgress, read_progress
from capstan.storage.delta import delta
from capstan.storage.delta.table_cache import VersionedCache, kept_facts
from capstan.storage.lake import Lake, newest_entry
from capstan.storage.late.late_rows import count_late
from capstan.storage.tape import index
from capstan.storage.tape.index import WorkerState
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import Cut, Tape, newest_cut, open_tape
from capstan.storage.tape.time_columns import as_integers
from capstan.verify.verified_ledger import newest_rows
from capstan.verify.violations_ledger import KnownViolation, known_violations


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream at a cut."""

    tape: Tape
    description: str
    cut: Cut
    workers: tuple[WorkerState, ...]
    greatest: int | None  # time of any record, leading coordinate; None without records
    late: Mapping[str, int]  # records that are not on tape, by reason

    @property
    def name(self) -> str:
        """The stream."""
        return self.tape.name

    @property
    def coordinate(self) -> Coordinate:
        """The coordinate of lines and lags: the last one, which is the event time if there is one.

        Of pairs it is the first.

        `frontier`, `behind` and `lag` are values of it.
        """
        return self.tape.time_type.coordinates[self.tape.time_type.leading]

    @property
    def events(self) -> int:
        """The number of events on tape."""
        return sum(state.events for state in self.workers)

    @property
    def records(self) -> int:
        """The number of records on tape."""
        return sum(state.records for state in self.workers)

    @property
    def closed(self) -> bool:
        """Whether every worker is closed."""
        return bool(self.workers) and all(state.closed for state in self.workers)

    @property
    def antichain(self) -> Antichain:
        """The frontier of all workers, in all coordinates."""
        return index.frontier_of(self.tape, self.workers)

    @property
    def frontier(self) -> int | None:
        """The least value that any worker holds; None when nothing is held."""
        return min((v for state in self.workers if (v := least_held(state)) is not None),
                   default=None)  # fmt: skip

    def label(self, worker: int | None) -> str:
        """The label of a worker; its number when it is unknown."""
        labels = {state.worker: state.label for state in self.workers}
        return "none" if worker is None else labels.get(worker, str(worker))

    @property
    def behind(self) -> int | None:
        """The lag of the stream's frontier."""
        return self.lag(self.frontier)

    def lag(self, held: int | None) -> int | None:
        """The lag of a frontier behind the greatest time on tape; None when it is closed."""
        if held is None or self.greatest is None or held == self.coordinate.minimum:
            return None
        return max(0, self.greatest - held)


@dataclass(frozen=True, slots=True)
class VerifiedState:
    """What is verified of a stream, up to a cut."""

    workers: Mapping[int, int]  # last verified commit, of those ever verified
    events: Mapping[int, int]  # up to there
    at: datetime | None  # of the newest verification

    def commit(self, view: StreamView) -> int | None:
        """The commit up to which all workers are verified; None when some worker never was."""
        commits = [self.workers.get(state.worker, -1) for state in view.workers]
        return None if not commits or min(commits) < 0 else min(commits)

    def to_json(self) -> Json:
        """The state as a JSON object."""
        workers = [[worker, at, self.events[worker]] for worker, at in self.workers.items()]
        return {"workers": workers, "at": None if self.at is None else self.at.isoformat()}

    @classmethod
    def from_json(cls, stored: Json) -> VerifiedState:
        """The state that `to_json` wrote."""
        at = stored["at"]
        return cls(
            {worker: commit for worker, commit, _ in stored["workers"]},
            {worker: events for worker, _, events in stored["workers"]},
            None if at is None else datetime.fromisoformat(at),
        )


@dataclass(frozen=True, slots=True)
class StreamHistory(StreamView):
    """A stream at its newest cut, as its page shows it."""

    progress: TapeProgress
    verified: VerifiedState
    violations: tuple[KnownViolation, ...]
    written: datetime | None  # time of the newest file of the index

    @property
    def verified_to(self) -> int | None:
        """The commit up to which all workers are verified; None when some worker never was."""
        return self.verified.commit(self)


@dataclass(frozen=True, slots=True)
class Payload:
    """The stored records of a stream: columns with their types, and number and size of files."""

    columns: tuple[tuple[str, str], ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class NoView:
    """A stream without a readable tape."""

    name: str
    description: str
    error: CapstanError | None = None  # None when it was not captured yet


_View = TypeVar("_View", bound=StreamView)
_Read = TypeVar("_Read")
_AT_ONCE = 8
_CACHE: VersionedCache[StreamHistory] = VersionedCache()
_VIOLATIONS: VersionedCache[tuple[KnownViolation, ...]] = VersionedCache()


def least_held(state: WorkerState) -> int | None:
    """The least value that a worker holds in the leading coordinate; None when it is closed."""
    axis = 0 if state.order.lexicographic else -1
    return min((time[axis] for time, count in state.holdings if count > 0), default=None)


def clock_lag(view: StreamView, now: datetime) -> int | None:
    """How far a stream's frontier is behind the clock, in its coordinate.

    None if it is closed or at the start, and of numbers, which no clock counts. A frontier ahead of
    the clock is not behind it.
    """
    kind, held = view.coordinate.kind, view.frontier
    if held is None or held == view.coordinate.minimum or kind is Kind.BIGINT:
        return None
    passed = now - datetime(1970, 1, 1, tzinfo=UTC)
    unit = timedelta(days=1) if kind is Kind.DATE else timedelta(microseconds=1)
    return max(0, passed // unit - held)


def stream_names(lake: Lake, config: ProjectConfig) -> list[str]:
    """The names of captured and declared streams, sorted."""
    return sorted({*lake.streams(), *config.streams})


def read_stream(lake: Lake, name: str, about: str = "", *, as_of: int | None = None) -> StreamView:
    """Read a stream at a commit, or at its newest one, from stored totals and the events after."""
    tape = open_tape(lake, name, stamps=True)
    cut = index.find_cut(tape, as_of)
    state = index.tape_state(tape, cut)
    return StreamView(tape, about, cut, state.workers, state.greatest, count_late(tape, cut))


def read_streams(
    lake: Lake, config: ProjectConfig, names: Sequence[str]
) -> list[StreamView | NoView]:
    """Read several streams at their newest commits, concurrently; they keep their order."""
    return _each(lake, config, names, lambda name, about: read_stream(lake, name, about))


def view_stream(lake: Lake, config: ProjectConfig, name: str) -> StreamHistory | NoView:
    """Read a stream with its history; errors of its tape are part of the result."""
    return view_streams(lake, config, [name])[0]


def view_streams(
    lake: Lake, config: ProjectConfig, names: Sequence[str]
) -> list[StreamHistory | NoView]:
    """Read several streams with their histories, concurrently; they keep their order."""
    return _each(lake, config, names, lambda name, about: _cached(lake, name, about))


def read_each(names: Iterable[str], read: Callable[[str], _Read]) -> list[_Read]:
    """Read things of several names concurrently, in their order; all know what is known here."""
    listed = list(names)
    # A context is that of one thread at a time.
    contexts = [copy_context() for _ in listed]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        return list(pool.map(lambda name, own: own.run(read, name), listed, contexts))


def _each(
    lake: Lake, config: ProjectConfig, names: Sequence[str], read: Callable[[str, str], _View]
) -> list[_View | NoView]:
    def one(name: str) -> _View | NoView:
        paths = lake.stream(name)
        declared = config.streams.get(name)
        about = declared.description if declared else ""
        if not newest_entry(paths.events):
            return NoView(name, about)
        try:
            return read(name, about)
        except CapstanError as error:
            # An unreadable tape does not hide the others.
            return NoView(name, about, error)

    return read_each(names, one)


def _cached(lake: Lake, name: str, about: str) -> StreamHistory:
    paths = lake.stream(name)
    sources = (paths.events, paths.late, lake.ledger("verified"), lake.ledger("findings"))
    events, late, verified, findings = map(newest_entry, sources)
    state = events, late, verified, findings
    return _CACHE.get((lake.root, name), (about, state), lambda: _history(lake, name, about, state))


def view_payload(lake: Lake, name: str) -> Payload:
    """Read the facts of a stream's records from the log of their table."""
    records = delta.open_table(lake.stream(name).records)
    files = pa.table(records.get_add_actions())
    schema: pa.Schema = pa.schema(records.schema().to_arrow())
    data = schema.field("data").type
    columns = tuple((data.field(i).name, str(data.field(i).type)) for i in range(data.num_fields))
    return Payload(columns, files.num_rows, pc.sum(files["size_bytes"]).as_py() or 0)


def _history(lake: Lake, name: str, about: str, state: tuple[str, str, str, str]) -> StreamHistory:
    paths, (events, late, verified, findings) = lake.stream(name), state
    facts = kept_facts("tape", paths.events, [events, late], lambda: _facts(lake, name))
    settings = TapeSettings.parse(facts["settings"])
    tape = Tape(name, paths, TimeType.from_json(facts["time"]), settings, facts["stamped"])
    cut, of_tape = Cut(*facts["cut"]), (name, facts["identity"])
    progress = read_progress(tape, cut)
    violations = _VIOLATIONS.get(lake.root, findings, lambda: tuple(known_violations(lake)))
    return StreamHistory(
        tape, about, cut, progress.workers, facts["greatest"], facts["late"], progress,
        VerifiedState.from_json(
            kept_facts(
                "verified", paths.events, [events, verified],
                lambda: read_verified(lake, tape, cut).to_json(),
            )
        ),
        tuple(each for each in violations if (each.stream, each.tape) == of_tape),
        _moment(facts["written"]),
    )  # fmt: skip


def _facts(lake: Lake, name: str) -> Json:
    """What a page reads of the tables of a tape, beside its index as a whole."""
    table = delta.open_table(lake.stream(name).events)
    tape = open_tape(lake, name, table, stamps=True)
    files, cut = table.files(), newest_cut(tape)
    times = greatest_times(files, tape.time_type.coordinates[tape.time_type.leading])
    return {
        "identity": str(table.metadata().id),
        "time": tape.time_type.to_json(),
        "settings": tape.settings.to_text(),
        "stamped": tape.stamped,
        "cut": [cut.commit, cut.batch],
        # By the bounds of files, to the millisecond.
        "greatest": None if times is None else pc.max(times).as_py(),
        "written": pc.max(files["modification_time"]).as_py() if files.num_rows else None,
        "late": count_late(tape, cut),
    }


def newest_write(files: pa.Table) -> datetime | None:
    """The time of the newest of a table's files; None without files."""
    return _moment(pc.max(files["modification_time"]).as_py() if files.num_rows else None)


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def greatest_times(files: pa.Table, coordinate: Coordinate) -> pa.ChunkedArray | None:
    """The greatest time of each file's messages events, as integers; None without bounds."""
    name = f"max.time.{coordinate.name}"
    return as_integers(files[name]) if name in files.column_names else None


def read_verified(lake: Lake, tape: Tape, cut: Cut) -> VerifiedState:
    """Read what is verified of a tape up to a cut."""
    opened = index.opened_commits(tape, cut)
    rows = newest_rows(lake, tape, cut.commit, opened, ["events", "at"])
    by_worker = {worker: row for worker, row in rows.items() if worker is not None}
    times = [row["at"] for row in by_worker.values() if isinstance(row["at"], datetime)]
    commits, events = (
        {worker: row[name] for worker, row in by_worker.items()} for name in ("commit", "events")
    )
    return VerifiedState(commits, events, max(times, default=None))
