"""Metrics of a lake for monitoring, without a JVM and without reading payloads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from capstan.core.config import ProjectConfig
from capstan.core.times import Coordinate, Kind
from capstan.errors import CapstanError
from capstan.reporting.attention.gather import read_attention
from capstan.reporting.attention.items import KINDS, AttentionList
from capstan.reporting.run_heads import RunHeads, read_heads
from capstan.reporting.stream_view import (
    NoView,
    StreamView,
    least_held,
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

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NOT_DOTTED: Final = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric tells, in a line, and its labels."""

    about: str
    labels: tuple[str, ...]


METRICS: Final = {
    name: Metric(about, ("stream", *labels))
    for name, about, *labels in (
        ("stream_readable", "1 if the tape of the stream can be read, else 0"),
        ("stream_closed", "1 if the stream is closed, else 0"),
        ("frontier_timestamp_seconds", "Event times before this moment are complete"),
        ("frontier_lag_seconds", "Lag of the frontier behind the greatest time on tape"),
        ("worker_frontier_lag_seconds", "Lag of the frontier of one worker", "worker"),
        ("frontier_value", "Times before this number are complete"),
        ("frontier_lag_value", "Lag of the frontier behind the greatest number on tape"),
        ("worker_frontier_lag_value", "Lag of the frontier of one worker", "worker"),
        ("events_total", "Events on tape"),
        ("records_total", "Records on tape"),
        ("commits_total", "Commits of the tape"),
        ("events_per_second", "Rate of events over the newest commits"),
        ("late_records_total", "Late records, which are not on tape, by reason", "reason"),
        ("files", "Data files of a table of the tape", "table"),
        ("bytes", "Size of the data files of a table of the tape", "table"),
        ("unverified_commits", "Commits since the last verified one"),
        ("unverified_events", "Events that were not verified yet"),
        ("written_timestamp_seconds", "Time of the last write to the tape"),
        ("runs", "Runs by result", "result"),
        ("run_timestamp_seconds", "Time of the newest run with this result", "result"),
        ("attention", "Things that need a person, by kind", "kind"),
    )
}
"""All metrics by name, without `capstan_` and with their unit; counters end with `_total`.

For times that are numbers, `_value` replaces `_seconds`.
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one of `METRICS`, with its labels in their order."""

    metric: str
    value: float
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        names = METRICS[self.metric].labels
        if len(self.labels) != len(names):
            raise ValueError(f"{self.metric} has labels {names}, not {self.labels}")

    @property
    def tags(self) -> Mapping[str, str]:
        """The label values by name."""
        return dict(zip(METRICS[self.metric].labels, self.labels, strict=True))


def lake_samples(lake: Lake, config: ProjectConfig) -> list[Sample]:
    """Samples of all streams and runs."""
    # An unreadable tape has a sample of its own, and does not hide the others.
    lake.require()
    names = stream_names(lake, config)
    return [
        *stream_samples(lake, config, names),
        *run_samples(read_heads(lake)),
        *attention_samples(read_attention(lake, config), lake.streams()),
    ]


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


def run_samples(runs: RunHeads) -> list[Sample]:
    """The number of runs by stream and result, and the time of the newest run of each."""
    return [
        sample
        for stream, state, count, newest in runs.counts
        for sample in (
            Sample("runs", count, (stream, state)),
            Sample("run_timestamp_seconds", newest.timestamp(), (stream, state)),
        )
    ]


def attention_samples(listed: AttentionList, names: Iterable[str]) -> list[Sample]:
    """Samples of what needs a person; of these streams, also of kinds that there are none of."""
    # Without a zero, an alarm does not end.
    none = {(kind, name): 0 for name in names for kind in KINDS}
    counts = sorted({**none, **listed.counts}.items(), key=lambda item: (item[0][1], item[0][0]))
    return [Sample("attention", count, (stream, kind)) for (kind, stream), count in counts]


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
        lag = view.lag(least_held(state))
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


def prometheus(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' exposition format 0.0.4, by metric in the order of `METRICS`."""
    by_metric: dict[str, list[str]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(_line(sample))
    lines = []
    for name, metric in METRICS.items():
        if name in by_metric:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP capstan_{name} {metric.about}", f"# TYPE capstan_{name} {kind}"]
            lines += by_metric[name]
    return "".join(f"{line}\n" for line in lines)


def _line(sample: Sample) -> str:
    pairs = ((name, text.translate(_ESCAPES)) for name, text in sample.tags.items())
    labels = ",".join(f'{name}="{text}"' for name, text in pairs)
    value = sample.value
    # Whole numbers have no fraction.
    text = str(int(value)) if value == int(value) else repr(float(value))
    return f"capstan_{sample.metric}{{{labels}}} {text}"


def dotted(sample: Sample) -> str:
    """The metric's name and label values, separated by dots: `capstan.files.flights.events`."""
    parts = [_NOT_DOTTED.sub("_", text) or "_" for text in sample.labels]
    return ".".join(["capstan", sample.metric, *parts])
