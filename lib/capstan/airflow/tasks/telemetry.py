"""Metrics of streams, sent through Airflow's `[metrics]`: StatsD or OpenTelemetry."""

from __future__ import annotations

import logging

from airflow.sdk.configuration import conf
from airflow.sdk.observability import stats

from capstan.airflow.settings import Settings
from capstan.core.config import check_name, split_streams

_METERS = ("statsd_on", "statsd_datadog_enabled", "otel_on")

_log = logging.getLogger(__name__)


def send_stream_metrics(settings: Settings, stream: object) -> None:
    """Send the metrics of streams and their runs, if Airflow's metrics are on."""
    # The samples are those of `capstan metrics`. Errors are logged only.
    if not isinstance(stream, str) or not any(map(_is_on, _METERS)):
        return
    try:
        # Not at the top: parsing a DAG file should not import table readers.
        from capstan.reporting.metrics import dotted, run_samples, stream_samples
        from capstan.reporting.run_view import list_runs_of_stream
        from capstan.storage.lake import Lake

        lake, tagged = Lake.at(settings.lake), _keeps_tags()
        for name in dict.fromkeys(split_streams(stream)):
            check_name("stream", name)
            samples = stream_samples(lake, settings.declarations, [name])
            for sample in (*samples, *run_samples(list_runs_of_stream(lake, name))):
                if tagged:
                    stats.gauge(f"capstan.{sample.metric}", sample.value, tags=dict(sample.tags))
                else:
                    stats.gauge(dotted(sample), sample.value)
    except Exception:
        _log.warning("metrics of %s could not be sent", stream, exc_info=True)


def _keeps_tags() -> bool:
    """Whether tags are sent: plain StatsD has none, and all streams would share one gauge."""
    if _is_on("statsd_datadog_enabled"):
        return True
    return _is_on("statsd_influxdb_enabled") if _is_on("statsd_on") else _is_on("otel_on")


def _is_on(option: str) -> bool:
    return bool(conf.getboolean("metrics", option, fallback=False))
