"""Metrics of streams, sent through Airflow's `[metrics]`: StatsD or OpenTelemetry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from capstan.airflow.settings import Settings
from capstan.core.config import check_name, split_streams

if TYPE_CHECKING:
    from capstan.reporting.attention.items import AttentionList
    from capstan.reporting.metrics import Sample

_METERS = ("statsd_on", "statsd_datadog_enabled", "otel_on")

_log = logging.getLogger(__name__)


def send_stream_metrics(settings: Settings, stream: object) -> None:
    """Send the metrics of streams and their runs, if Airflow's metrics are on."""
    if isinstance(stream, str):
        _send(stream, lambda: _stream_samples(settings, stream))


def send_attention(settings: Settings, listed: AttentionList) -> None:
    """Send how many things need a person, if Airflow's metrics are on."""
    _send("what needs attention", lambda: _attention_samples(settings, listed))


def _stream_samples(settings: Settings, stream: str) -> Iterator[Sample]:
    # Not at the top: parsing a DAG file should not import table readers.
    from capstan.reporting.lists.run_search import RunSearch
    from capstan.reporting.metrics import run_samples, stream_samples
    from capstan.reporting.run_heads import read_heads
    from capstan.storage.lake import Lake

    lake = Lake.at(settings.lake)
    runs = read_heads(lake)
    for name in dict.fromkeys(split_streams(stream)):
        check_name("stream", name)
        yield from stream_samples(lake, settings.declarations, [name])
        yield from run_samples(runs.found(RunSearch(stream=name)))


def _attention_samples(settings: Settings, listed: AttentionList) -> list[Sample]:
    from capstan.reporting.metrics import attention_samples
    from capstan.storage.lake import Lake

    return attention_samples(listed, Lake.at(settings.lake).streams())


def _send(about: str, samples: Callable[[], Iterable[Sample]]) -> None:
    """Send samples, which are those of `capstan metrics`; errors are logged only."""
    if not any(map(_is_on, _METERS)):
        return
    try:
        from capstan.reporting.metrics import dotted

        tagged = _keeps_tags()
        for sample in samples():
            if tagged:
                stats.gauge(f"capstan.{sample.metric}", sample.value, tags=dict(sample.tags))
            else:
                stats.gauge(dotted(sample), sample.value)
    except Exception:
        _log.warning("metrics of %s could not be sent", about, exc_info=True)


def _keeps_tags() -> bool:
    """Whether tags are sent: plain StatsD has none, and all streams would share one gauge."""
    if _is_on("statsd_datadog_enabled"):
        return True
    return _is_on("statsd_influxdb_enabled") if _is_on("statsd_on") else _is_on("otel_on")


def _is_on(option: str) -> bool:
    return bool(conf.getboolean("metrics", option, fallback=False))
