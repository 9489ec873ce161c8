"""Samples of a lake from its tables and ledgers, without a JVM and without reading payloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.times import Coordinate, Kind
from capstan.errors import CapstanError
from capstan.reporting.metrics.metrics import Sample
from capstan.reporting.run_view import RunView, list_runs
from capstan.reporting.stream_view import (
    NoView,
    StreamView,
    newest_write,
    read_streams,
    read_verified,
    stream_names,
)
from capstan.storage.delta import delta
from capstan.storage.lake import Lake, is_table

_NEWEST: Final = 20
"""The number of commits from which the rate of events is computed."""

_OTHERS: Final = ("late", "records", "workers", "feed")
"""The tables of a tape other than its index; only captured tapes have a feed."""

_SECONDS: Final = {Kind.TIMESTAMP: Fraction(1, 1_000_000), Kind.DATE: Fraction(86_400)}
"""The length of a coordinate's unit in seconds; numbers have none."""


def lake_samples(lake: Lake, config: ProjectConfig) -> list[Sample]:
    """Samples of all streams and runs."""
    # An unreadable tape has a sample of its own, and does not hide the others.
    lake.require()
    names = stream_names(lake, config)
    return [*stream_samples(lake, config, names), *run_samples(list_runs(lake))]


def stream_samples(lake: Lake, config: ProjectConfig, names: Sequence[str]) -> list[Sample]:
    """Samples of some streams; a stream without a tape has none."""
    samples: list[Sample] = []
    for view in read_streams(lake, config, names):
        unreadable = Sample("stream_readable", 0, (view.name,))
        if isinstance(view, NoView):
            samples += [] if view.error is None else [unreadable]
            continue
        try:
            samples += [
                Sample("stream_readable", 1, (view.name,)),
                *frontier_samples(view),
                *_counts(lake, view),
                *_table_samples(view),
            ]
        except CapstanError:
            # The table was deleted in the meantime.
            samples.append(unreadable)
    return samples


def run_samples(runs: Sequence[RunView]) -> list[Sample]:
    """The number of runs by stream and result, and the time of the newest run of each."""
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
    """Frontier and lag of a stream and of its workers."""
    coordinate = view.coordinate
    yield Sample("stream_closed", int(view.closed), (view.name,))
    if view.frontier is not None and view.frontier != coordinate.minimum:
        name = "frontier_timestamp" if coordinate.kind in _SECONDS else "frontier"
        yield _in_unit(name, coordinate, view.frontier, (view.name,))
    if view.behind is not None:
        yield _in_unit("frontier_lag", coordinate, view.behind, (view.name,))
    for state in view.workers:
        lag = view.lag(state)
        if lag is not None:
            yield _in_unit("worker_frontier_lag", coordinate, lag, (view.name, state.label))


def _in_unit(name: str, coordinate: Coordinate, value: int, labels: tuple[str, ...]) -> Sample:
    """A sample in seconds, or as a plain number."""
    unit = _SECONDS.get(coordinate.kind)
    if unit is None:
        return Sample(f"{name}_value", value, labels)
    return Sample(f"{name}_seconds", float(value * unit), labels)


def _counts(lake: Lake, view: StreamView) -> Iterator[Sample]:
    stream, verified = (view.name,), read_verified(lake, view.tape, view.cut)
    yield Sample("events_total", view.events, stream)
    yield Sample("records_total", view.records, stream)
    yield Sample("commits_total", view.cut.commit + 1, stream)
    for reason, count in sorted(view.late.items()):
        yield Sample("late_records_total", count, (view.name, reason))
    commit = verified.commit(view)
    yield Sample("unverified_commits", view.cut.commit - (-1 if commit is None else commit), stream)
    unseen = (max(0, w.events - verified.events.get(w.worker, 0)) for w in view.workers)
    yield Sample("unverified_events", sum(unseen), stream)


def _table_samples(view: StreamView) -> Iterator[Sample]:
    paths = view.tape.paths
    events = delta.open_table(paths.events)
    rate = events_per_second(events.history(_NEWEST))
    if rate is not None:
        yield Sample("events_per_second", rate, (view.name,))
    present = [name for name in _OTHERS if is_table(getattr(paths, name))]
    others = [(name, delta.open_table(getattr(paths, name))) for name in present]
    for name, table in (("events", events), *others):
        files = pa.table(table.get_add_actions())
        if name == "events" and (written := newest_write(files)) is not None:
            yield Sample("written_timestamp_seconds", written.timestamp(), (view.name,))
        yield Sample("files", files.num_rows, (view.name, name))
        yield Sample("bytes", pc.sum(files["size_bytes"]).as_py() or 0, (view.name, name))


def events_per_second(commits: Sequence[Mapping[str, Any]]) -> float | None:
    """The rate of events since the oldest of `commits` (commitInfo, the newest first).

    None unless at least two commits at different times have events.
    """
    writes = list[tuple[int, int]]()
    for commit in commits:
        metrics, at = commit.get("operationMetrics"), commit.get("timestamp")
        rows = metrics.get("numOutputRows") if isinstance(metrics, Mapping) else None
        if commit.get("operation") == "WRITE" and rows is not None and at is not None:
            writes.append((at, int(rows)))
    if len(writes) < 2 or writes[0][0] <= writes[-1][0]:
        return None
    seconds = (writes[0][0] - writes[-1][0]) / 1000
    # The events of the oldest commit arrived before it.
    return sum(rows for _, rows in writes[:-1]) / seconds
