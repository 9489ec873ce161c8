"""What is measured: metrics by name, and samples of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How a metric's values go on: a counter only rises."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """Something that is measured.

    Attributes:
        name: In the form of Prometheus, without the prefix `capstan_`; its unit is its ending.
        kind: How its values go on.
        about: One line for people.
        labels: The names that tell its samples from each other.
    """

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...]


_STREAM: Final = ("stream",)

METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric(
            "stream_readable", Kind.GAUGE, "1 where the stream's tape can be read, else 0", _STREAM
        ),
        Metric("stream_closed", Kind.GAUGE, "1 where nothing can come any more, else 0", _STREAM),
        Metric(
            "frontier_timestamp_seconds",
            Kind.GAUGE,
            "Event times before this moment are complete",
            _STREAM,
        ),
        Metric(
            "frontier_lag_seconds",
            Kind.GAUGE,
            "How far the frontier is behind the greatest time on tape",
            _STREAM,
        ),
        Metric(
            "worker_frontier_lag_seconds",
            Kind.GAUGE,
            "The same of one worker's frontier",
            ("stream", "worker"),
        ),
        Metric("frontier_value", Kind.GAUGE, "Times before this number are complete", _STREAM),
        Metric(
            "frontier_lag_value",
            Kind.GAUGE,
            "How far the frontier is behind the greatest number on tape",
            _STREAM,
        ),
        Metric(
            "worker_frontier_lag_value",
            Kind.GAUGE,
            "The same of one worker's frontier",
            ("stream", "worker"),
        ),
        Metric("events_total", Kind.COUNTER, "Events on tape", _STREAM),
        Metric("records_total", Kind.COUNTER, "Records on tape", _STREAM),
        Metric("commits_total", Kind.COUNTER, "Commits of the tape", _STREAM),
        Metric(
            "events_per_second",
            Kind.GAUGE,
            "Events of the newest commits, by the time that these took to come",
            _STREAM,
        ),
        Metric(
            "late_records_total",
            Kind.COUNTER,
            "Records that are not on tape, by reason",
            ("stream", "reason"),
        ),
        Metric("files", Kind.GAUGE, "Data files of a table of the tape", ("stream", "table")),
        Metric("bytes", Kind.GAUGE, "Their size", ("stream", "table")),
        Metric("unverified_commits", Kind.GAUGE, "Commits since the last one found sound", _STREAM),
        Metric("unverified_events", Kind.GAUGE, "Events that no verification has seen", _STREAM),
        Metric(
            "written_timestamp_seconds", Kind.GAUGE, "When the tape was last written to", _STREAM
        ),
        Metric("runs", Kind.GAUGE, "Runs by what came of them", ("stream", "result")),
        Metric(
            "run_timestamp_seconds",
            Kind.GAUGE,
            "When a run last came to this",
            ("stream", "result"),
        ),
    )
}
"""All metrics by name; where times are numbers, `_value` stands in place of `_seconds`."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric.

    Attributes:
        metric: Its name, one of `METRICS`.
        value: A finite number.
        labels: A value for each of the metric's labels, in their order.
    """

    metric: str
    value: float
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        wanted = METRICS[self.metric].labels
        if len(self.labels) != len(wanted):
            raise ValueError(f"{self.metric} has labels {wanted}, not {self.labels}")

    @property
    def tags(self) -> Mapping[str, str]:
        """The labels by name."""
        return dict(zip(METRICS[self.metric].labels, self.labels, strict=True))
