"""Worker labels that trigger forms offer: declared ones, and those that captures have found.

Captures save them in the lake, so that Airflow's components need to share nothing else. DAG files
are parsed often: nothing here opens a table, and only a lake in an object store loads pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from capstan.airflow.settings import Settings
from capstan.core.config import ByColumn, ByKey, Stream
from capstan.spark.project_home import replacing

_FILE = "labels.json"


def labels_by_stream(setting: Settings) -> dict[str, tuple[str, ...]]:
    """The worker labels of each declared stream: declared ones, then captured ones."""
    captured = _read(setting.lake)
    return {
        # After a rescale, the tape has labels that are no longer declared.
        name: tuple(dict.fromkeys((*_declared(stream), *captured.get(name, ()))))
        for name, stream in setting.declarations.streams.items()
    }


def remember_labels(setting: Settings, stream: str, labels: Sequence[str]) -> None:
    """Save the worker labels of a stream for forms; a failure to write is ignored."""
    before = _read(setting.lake)
    known = {**before, stream: tuple(labels)}
    if known != before:
        with suppress(OSError):
            _write(setting.lake, json.dumps(known, sort_keys=True))


def _write(lake: str, text: str) -> None:
    if "://" in lake:
        from capstan.storage.lake import write_text

        write_text(f"{lake}/{_FILE}", text)
        return
    with replacing(Path(lake, _FILE)) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _declared(stream: Stream) -> tuple[str, ...]:
    workers = stream.workers
    if isinstance(workers, ByKey):
        return tuple(str(number) for number in range(workers.count))
    return workers.labels or () if isinstance(workers, ByColumn) else ()


def _read(lake: str) -> Mapping[str, tuple[str, ...]]:
    """The labels that captures have saved, by stream; none when they cannot be read."""
    try:
        content = json.loads(_text(lake))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    lists = {name: labels for name, labels in content.items() if isinstance(labels, list)}
    return {name: tuple(str(label) for label in labels) for name, labels in lists.items()}


def _text(lake: str) -> str:
    if "://" not in lake:
        return Path(lake, _FILE).read_text(encoding="utf-8")
    from capstan.storage.lake import read_text

    return read_text(f"{lake}/{_FILE}")
