"""Figures of a lake by name, as monitoring takes them: gathered without a JVM, told as text."""

from __future__ import annotations

from capstan.reporting.metrics.collect import lake_samples, run_samples, stream_samples
from capstan.reporting.metrics.metrics import METRICS, Kind, Metric, Sample
from capstan.reporting.metrics.prometheus import dotted, prometheus

__all__ = [
    "METRICS",
    "Kind",
    "Metric",
    "Sample",
    "dotted",
    "lake_samples",
    "prometheus",
    "run_samples",
    "stream_samples",
]
