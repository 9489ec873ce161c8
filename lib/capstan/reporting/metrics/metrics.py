"""Metrics by name, and their samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    """The type of a metric; a counter never decreases."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric; its name lacks the Prometheus prefix `capstan_` and ends with the unit."""

    name: str
    kind: MetricKind
    about: str
    labels: tuple[str, ...]


_STREAM: Final = ("stream",)

METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric(
            "stream_readable",
            MetricKind.GAUGE,
            "1 if the tape of the stream can be read, else 0",
            _STREAM,
        ),
        Metric("stream_closed", MetricKind.GAUGE, "1 if the stream is closed, else 0", _STREAM),
        Metric(
            "frontier_timestamp_seconds",
            MetricKind.GAUGE,
            "Event times before this moment are complete",
            _STREAM,
        ),
        Metric(
            "frontier_lag_seconds",
            MetricKind.GAUGE,
            "Lag of the frontier behind the greatest time on tape",
            _STREAM,
        ),
        Metric(
            "worker_frontier_lag_seconds",
            MetricKind.GAUGE,
            "Lag of the frontier of one worker",
            ("stream", "worker"),
        ),
        Metric(
            "frontier_value", MetricKind.GAUGE, "Times before this number are complete", _STREAM
        ),
        Metric(
            "frontier_lag_value",
            MetricKind.GAUGE,
            "Lag of the frontier behind the greatest number on tape",
            _STREAM,
        ),
        Metric(
            "worker_frontier_lag_value",
            MetricKind.GAUGE,
            "Lag of the frontier of one worker",
            ("stream", "worker"),
        ),
        Metric("events_total", MetricKind.COUNTER, "Events on tape", _STREAM),
        Metric("records_total", MetricKind.COUNTER, "Records on tape", _STREAM),
        Metric("commits_total", MetricKind.COUNTER, "Commits of the tape", _STREAM),
        Metric(
            "events_per_second",
            MetricKind.GAUGE,
            "Rate of events over the newest commits",
            _STREAM,
        ),
        Metric(
            "late_records_total",
            MetricKind.COUNTER,
            "Late records, which are not on tape, by reason",
            ("stream", "reason"),
        ),
        Metric("files", MetricKind.GAUGE, "Data files of a table of the tape", ("stream", "table")),
        Metric(
            "bytes",
            MetricKind.GAUGE,
            "Size of the data files of a table of the tape",
            ("stream", "table"),
        ),
        Metric(
            "unverified_commits", MetricKind.GAUGE, "Commits since the last verified one", _STREAM
        ),
        Metric("unverified_events", MetricKind.GAUGE, "Events that were not verified yet", _STREAM),
        Metric(
            "written_timestamp_seconds",
            MetricKind.GAUGE,
            "Time of the last write to the tape",
            _STREAM,
        ),
        Metric("runs", MetricKind.GAUGE, "Runs by result", ("stream", "result")),
        Metric(
            "run_timestamp_seconds",
            MetricKind.GAUGE,
            "Time of the newest run with this result",
            ("stream", "result"),
        ),
    )
}
"""All metrics by name; for times that are numbers, `_value` replaces `_seconds`."""


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
