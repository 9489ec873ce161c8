"""Metrics of a lake for monitoring, collected without a JVM."""

from __future__ import annotations

from capstan.reporting.metrics.collect import lake_samples, run_samples, stream_samples
from capstan.reporting.metrics.metrics import METRICS, Metric, MetricKind, Sample
from capstan.reporting.metrics.prometheus import dotted, prometheus

__all__ = [
    "METRICS",
    "Metric",
    "MetricKind",
    "Sample",
    "dotted",
    "lake_samples",
    "prometheus",
    "run_samples",
    "stream_samples",
]
