"""Samples of a lake, from what its tables and ledgers say: no JVM, and no payload is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.times import Coordinate, Kind
from capstan.errors import CapstanError
from capstan.reporting.metrics.metrics import Sample
from capstan.reporting.run_view import RunView, list_runs
from capstan.reporting.stream_view import NoView, StreamView, stream_names, view_streams
from capstan.storage import delta
from capstan.storage.lake import Lake, is_table
from capstan.storage.ledger.tables import read_rows

_NEWEST: Final = 20
"""So many commits tell how fast events come."""

_OTHERS: Final = ("late", "records", "workers", "feed")
"""The tables of a tape beside its index; only captures have a feed."""

_SECONDS: Final = {Kind.TIMESTAMP: Fraction(1, 1_000_000), Kind.DATE: Fraction(86_400)}
"""How long a coordinate's unit is; a number has none."""


def lake_samples(lake: Lake, declarations: ProjectConfig) -> list[Sample]:
    """Samples of all streams, on tape and declared, and of all runs.

    A tape that cannot be read is told as such, and hides no other.

    Raises:
        InvalidRequestError: `CAP-LAKE` when there is no lake.
    """
    lake.require()
    names = stream_names(lake, declarations)
    return [*stream_samples(lake, declarations, names), *run_samples(list_runs(lake))]


def stream_samples(lake: Lake, declarations: ProjectConfig, names: Sequence[str]) -> list[Sample]:
    """Samples of some streams; of one that is not on tape yet there are none."""
    found: list[Sample] = []
    for view in view_streams(lake, declarations, names):
        if isinstance(view, NoView):
            found += [] if view.error is None else [Sample("stream_readable", 0, (view.name,))]
            continue
        try:
            found += [
                Sample("stream_readable", 1, (view.name,)),
                *frontier_samples(view),
                *_counts(view),
                *_table_samples(lake, view),
            ]
        except CapstanError:
            # The table has gone since it was looked at.
            found.append(Sample("stream_readable", 0, (view.name,)))
    return found


def run_samples(runs: Sequence[RunView]) -> list[Sample]:
    """How many runs there are by stream and result, and when the newest of each was."""
    counts = Counter((run.stream, run.state) for run in runs)
    newest: dict[tuple[str, str], datetime] = {}
    for run in runs:
        key = (run.stream, run.state)
        newest[key] = max(run.at, newest.get(key, run.at))
    return [
        sample
        for key in sorted(counts)
        for sample in (
            Sample("runs", counts[key], key),
            Sample("run_timestamp_seconds", newest[key].timestamp(), key),
        )
    ]


def frontier_samples(view: StreamView) -> Iterator[Sample]:
    """How far a stream is, and each of its workers."""
    coordinate = view.coordinate
    yield Sample("stream_closed", int(view.closed), (view.name,))
    if view.frontier is not None and view.frontier != coordinate.minimum:
        name = "frontier_timestamp" if coordinate.kind in _SECONDS else "frontier"
        yield _in_unit(name, coordinate, view.frontier, (view.name,))
    if view.behind is not None:
        yield _in_unit("frontier_lag", coordinate, view.behind, (view.name,))
    for line in view.progress.lines:
        lag = view.lag(line)
        if lag is not None:
            yield _in_unit("worker_frontier_lag", coordinate, lag, (view.name, line.label))


def _in_unit(name: str, coordinate: Coordinate, value: int, labels: tuple[str, ...]) -> Sample:
    """A sample in seconds, or as the number that it is."""
    unit = _SECONDS.get(coordinate.kind)
    if unit is None:
        return Sample(f"{name}_value", value, labels)
    return Sample(f"{name}_seconds", float(value * unit), labels)


def _counts(view: StreamView) -> Iterator[Sample]:
    own = (view.name,)
    yield Sample("events_total", view.progress.events, own)
    yield Sample("records_total", view.progress.records, own)
    yield Sample("commits_total", view.cut.commit + 1, own)
    for reason, count in sorted(view.late.items()):
        yield Sample("late_records_total", count, (view.name, reason))
    checked = -1 if view.checked is None else view.checked.commit
    yield Sample("unverified_commits", max(0, view.cut.commit - checked), own)
    if view.written is not None:
        yield Sample("written_timestamp_seconds", view.written.timestamp(), own)


def _table_samples(lake: Lake, view: StreamView) -> Iterator[Sample]:
    paths = lake.stream(view.name)
    events = delta.open_table(paths.events)
    rate = events_per_second(events.history(_NEWEST))
    if rate is not None:
        yield Sample("events_per_second", rate, (view.name,))
    verified = _verified_events(lake, view.name, str(events.metadata().id))
    unseen = view.progress.events - sum(
        min(line.events, verified.get(line.worker, 0)) for line in view.progress.lines
    )
    yield Sample("unverified_events", unseen, (view.name,))
    there = [name for name in _OTHERS if is_table(getattr(paths, name))]
    others = [(name, delta.open_table(getattr(paths, name))) for name in there]
    for name, table in (("events", events), *others):
        sizes = pa.table(table.get_add_actions())["size_bytes"]
        yield Sample("files", len(sizes), (view.name, name))
        yield Sample("bytes", pc.sum(sizes).as_py() or 0, (view.name, name))


def events_per_second(commits: Sequence[Mapping[str, object]]) -> float | None:
    """Events that the newest commits have put on tape, by the seconds since the oldest of them.

    Args:
        commits: Delta's commitInfo, the newest first.

    Returns:
        None where fewer than two commits, or none at two moments, have events.
    """
    found = []
    for commit in commits:
        metrics, at = commit.get("operationMetrics"), commit.get("timestamp")
        rows = metrics.get("numOutputRows") if isinstance(metrics, Mapping) else None
        if commit.get("operation") == "WRITE" and rows is not None and at is not None:
            found.append((int(str(at)), int(str(rows))))
    if len(found) < 2 or found[0][0] <= found[-1][0]:
        return None
    seconds = (found[0][0] - found[-1][0]) / 1000
    # The oldest one's events came before it.
    return sum(rows for _, rows in found[:-1]) / seconds


def _verified_events(lake: Lake, stream: str, tape: str) -> dict[int, int]:
    """Events that were found sound, by worker."""
    found: dict[int, int] = {}
    for row in read_rows(lake, "verified", stream=stream, tape=tape):
        if row["worker"] is not None:
            worker, events = int(str(row["worker"])), int(str(row["events"]))
            found[worker] = max(events, found.get(worker, 0))
    return found
