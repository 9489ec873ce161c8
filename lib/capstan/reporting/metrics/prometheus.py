"""Samples as text: the exposition format of Prometheus, and names for those that have no labels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from capstan.reporting.metrics.metrics import METRICS, Sample

PREFIX = "capstan_"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NOT_DOTTED = re.compile(r"[^a-zA-Z0-9_-]")


def prometheus(samples: Iterable[Sample]) -> str:
    """Samples in the exposition format of Prometheus, version 0.0.4.

    Metrics stand in the order of `METRICS`, the samples of each as they come.
    """
    found: dict[str, list[str]] = {}
    for sample in samples:
        found.setdefault(sample.metric, []).append(_line(sample))
    lines = []
    for name, metric in METRICS.items():
        if name in found:
            lines.append(f"# HELP {PREFIX}{name} {metric.about}")
            lines.append(f"# TYPE {PREFIX}{name} {metric.kind}")
            lines += found[name]
    return "".join(f"{line}\n" for line in lines)


def _line(sample: Sample) -> str:
    labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.tags.items())
    return f"{PREFIX}{sample.metric}{{{labels}}} {number(sample.value)}"


def number(value: float) -> str:
    """A value, without a fraction where it has none."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)


def dotted(sample: Sample) -> str:
    """A name with the labels' values in it, by dots: `capstan.files.flights.events`."""
    parts = [_NOT_DOTTED.sub("_", text) or "_" for text in sample.labels]
    return ".".join(["capstan", sample.metric, *parts])
