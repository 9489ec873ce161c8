"""Choices of trigger forms, from the declarations and from a file that captures update.

DAG files are parsed often, so nothing here opens a lake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from capstan.airflow.settings import Settings
from capstan.core.config import ByColumn, ByKey, Stream
from capstan.spark.project_home import replacing

_LIST = "workers.json"


def labels_by_stream(setting: Settings) -> dict[str, tuple[str, ...]]:
    """The worker labels of each declared stream: declared ones, then captured ones."""
    captured = _read(setting.work)
    return {
        # After a rescale, the tape has labels that are no longer declared.
        name: tuple(dict.fromkeys((*_declared(stream), *captured.get(name, ()))))
        for name, stream in setting.declarations.streams.items()
    }


def remember_labels(setting: Settings, stream: str, labels: Sequence[str]) -> None:
    """Save the worker labels of a stream for forms; a failure to write is ignored."""
    path = setting.work / _LIST
    known = {**_read(setting.work), stream: tuple(labels)}
    if known == _read(setting.work):
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_text(json.dumps(known, sort_keys=True), encoding="utf-8")


def _declared(stream: Stream) -> tuple[str, ...]:
    workers = stream.workers
    if isinstance(workers, ByKey):
        return tuple(str(number) for number in range(workers.count))
    return workers.labels or () if isinstance(workers, ByColumn) else ()


def _read(work: Path) -> Mapping[str, tuple[str, ...]]:
    try:
        content = json.loads((work / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    lists = {name: labels for name, labels in content.items() if isinstance(labels, list)}
    return {name: tuple(str(label) for label in labels) for name, labels in lists.items()}
