"""Text forms of samples: the Prometheus exposition format, and dotted names without labels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from capstan.reporting.metrics.metrics import METRICS, Sample

PREFIX = "capstan_"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NOT_DOTTED = re.compile(r"[^a-zA-Z0-9_-]")


def prometheus(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' exposition format 0.0.4, by metric in the order of `METRICS`."""
    by_metric: dict[str, list[str]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(_line(sample))
    lines = []
    for name, metric in METRICS.items():
        if name in by_metric:
            lines.append(f"# HELP {PREFIX}{name} {metric.about}")
            lines.append(f"# TYPE {PREFIX}{name} {metric.kind}")
            lines += by_metric[name]
    return "".join(f"{line}\n" for line in lines)


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.tags.items())
    return f"{PREFIX}{sample.metric}{{{labels}}} {number(sample.value)}"


def number(value: float) -> str:
    """A value as text; whole numbers have no fraction."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def dotted(sample: Sample) -> str:
    """The metric's name and label values, separated by dots: `capstan.files.flights.events`."""
    parts = [_NOT_DOTTED.sub("_", text) or "_" for text in sample.labels]
    return ".".join(["capstan", sample.metric, *parts])
