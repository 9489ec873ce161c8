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


def _gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, about, ("stream", *labels))


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, about, ("stream", *labels))


METRICS: Final = {
    metric.name: metric
    for metric in (
        _gauge("stream_readable", "1 if the tape of the stream can be read, else 0"),
        _gauge("stream_closed", "1 if the stream is closed, else 0"),
        _gauge("frontier_timestamp_seconds", "Event times before this moment are complete"),
        _gauge("frontier_lag_seconds", "Lag of the frontier behind the greatest time on tape"),
        _gauge("worker_frontier_lag_seconds", "Lag of the frontier of one worker", "worker"),
        _gauge("frontier_value", "Times before this number are complete"),
        _gauge("frontier_lag_value", "Lag of the frontier behind the greatest number on tape"),
        _gauge("worker_frontier_lag_value", "Lag of the frontier of one worker", "worker"),
        _counter("events_total", "Events on tape"),
        _counter("records_total", "Records on tape"),
        _counter("commits_total", "Commits of the tape"),
        _gauge("events_per_second", "Rate of events over the newest commits"),
        _counter("late_records_total", "Late records, which are not on tape, by reason", "reason"),
        _gauge("files", "Data files of a table of the tape", "table"),
        _gauge("bytes", "Size of the data files of a table of the tape", "table"),
        _gauge("unverified_commits", "Commits since the last verified one"),
        _gauge("unverified_events", "Events that were not verified yet"),
        _gauge("written_timestamp_seconds", "Time of the last write to the tape"),
        _gauge("runs", "Runs by result", "result"),
        _gauge("run_timestamp_seconds", "Time of the newest run with this result", "result"),
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
