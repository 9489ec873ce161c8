"""Worker labels that trigger forms offer: declared ones, and those that captures have found.

Captures save them in the lake, so that Airflow's components need to share nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from capstan.airflow.lake_files import read_lake_file, write_lake_file
from capstan.airflow.settings import Settings
from capstan.core.config import ByColumn, ByKey, Stream

_FILE = "labels.json"


def labels_by_stream(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The worker labels of each declared stream: declared ones, then captured ones."""
    captured = _read(settings.lake)
    return {
        # After a rescale, the tape has labels that are no longer declared.
        name: tuple(dict.fromkeys((*_declared(stream), *captured.get(name, ()))))
        for name, stream in settings.declarations.streams.items()
    }


def remember_labels(settings: Settings, stream: str, labels: Sequence[str]) -> None:
    """Save the worker labels of a stream for forms; a failure to write is ignored."""
    before = _read(settings.lake)
    known = {**before, stream: tuple(labels)}
    if known != before:
        write_lake_file(settings.lake, _FILE, json.dumps(known, sort_keys=True))


def _declared(stream: Stream) -> tuple[str, ...]:
    workers = stream.workers
    if isinstance(workers, ByKey):
        return tuple(str(number) for number in range(workers.count))
    return workers.labels or () if isinstance(workers, ByColumn) else ()


def _read(lake: str) -> Mapping[str, tuple[str, ...]]:
    """The labels that captures have saved, by stream; none when they cannot be read."""
    try:
        content = json.loads(read_lake_file(lake, _FILE) or "{}")
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    lists = {name: labels for name, labels in content.items() if isinstance(labels, list)}
    return {name: tuple(str(label) for label in labels) for name, labels in lists.items()}
