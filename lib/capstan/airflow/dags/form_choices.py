"""What the trigger form offers: from the declarations, and from a small list that capture keeps.

A DAG file is parsed often, so nothing here opens a lake.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from capstan.airflow.settings import Settings
from capstan.core.config import ByColumn, ByKey, Stream

_LIST = "workers.json"


def labels_by_stream(setting: Settings) -> dict[str, tuple[str, ...]]:
    """The known labels of each declared stream's workers: declared ones, and those captured."""
    captured = _read(setting.work)
    return {
        # Of a stream that was rescaled there are others on tape than are declared.
        name: tuple(dict.fromkeys((*_declared(stream), *captured.get(name, ()))))
        for name, stream in setting.declarations.streams.items()
    }


def remember_labels(setting: Settings, stream: str, labels: Sequence[str]) -> None:
    """Keep the labels of a stream's workers for the form; a list that cannot be kept is left."""
    path = setting.work / _LIST
    known = {**_read(setting.work), stream: tuple(labels)}
    if known == _read(setting.work):
        return
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(known, sort_keys=True), encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)


def _declared(stream: Stream) -> tuple[str, ...]:
    by = stream.workers
    if isinstance(by, ByKey):
        return tuple(str(number) for number in range(by.count))
    return by.labels or () if isinstance(by, ByColumn) else ()


def _read(work: Path) -> Mapping[str, tuple[str, ...]]:
    try:
        found = json.loads((work / _LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    lists = {name: labels for name, labels in found.items() if isinstance(labels, list)}
    return {name: tuple(str(label) for label in labels) for name, labels in lists.items()}
