"""Small text files in the lake, through which Airflow's components share what they know.

Captures leave the worker labels that they have found, which trigger forms then offer. The DAG
`capstan_attention` leaves what it has found, so that it tells of it once. Tasks leave a copy of the
declarations for the page: with DAG bundles from Git, or in images of their own, the API server has
no DAG folder. DAG files are parsed often: nothing here opens a table, and only a lake in an object
store loads pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from capstan.airflow.settings import Settings, read_settings
from capstan.core.config import ByColumn, ByKey, Stream
from capstan.errors import CapstanError
from capstan.spark.project_home import replacing

_LABELS = "labels.json"
_DECLARATIONS = "streams.yaml"
_ATTENTION = "attention.json"


def portable_declarations(settings: Settings) -> str | None:
    """The text of the declaration file, to be read elsewhere; None if it cannot be read."""
    try:
        text = settings.config.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    # The copy is elsewhere, so that paths beside the file need its folder.
    return text.replace("{here}", str(settings.config.absolute().parent))


def remember_declarations(settings: Settings) -> None:
    """Copy the declaration file to the lake if it has changed; a failure to write is ignored."""
    text = portable_declarations(settings)
    if text is not None and text != _read(settings.lake, _DECLARATIONS):
        _write(settings.lake, _DECLARATIONS, text)


def read_page_settings(dag_folder: Path) -> Settings:
    """The settings of the page: of the declaration file, or else of its copy in the lake."""
    settings = read_settings(dag_folder / "any.py")
    if settings.config.exists():
        return settings
    text = _read(settings.lake, _DECLARATIONS)
    if text is None:
        return settings
    copy = Path(settings.lake, _DECLARATIONS)
    if "://" in settings.lake:
        copy = settings.work / "page" / _DECLARATIONS
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    return read_settings(dag_folder / "any.py", config=copy)


def labels_by_stream(settings: Settings) -> dict[str, tuple[str, ...]]:
    """The worker labels of each declared stream: declared ones, then captured ones."""
    captured = _captured(settings.lake)
    return {
        # After a rescale, the tape has labels that are no longer declared.
        name: tuple(dict.fromkeys((*_declared(stream), *captured.get(name, ()))))
        for name, stream in settings.declarations.streams.items()
    }


def remember_labels(settings: Settings, stream: str, labels: Sequence[str]) -> None:
    """Save the worker labels of a stream for forms; a failure to write is ignored."""
    before = _captured(settings.lake)
    known = {**before, stream: tuple(labels)}
    if known != before:
        _write(settings.lake, _LABELS, json.dumps(known, sort_keys=True))


def told_attention(settings: Settings) -> dict[str, int]:
    """What needed a person at the last look, by key, with its number; empty before the first."""
    try:
        content = json.loads(_read(settings.lake, _ATTENTION) or "{}")
    except ValueError:
        return {}
    numbers = content.items() if isinstance(content, dict) else ()
    return {key: number for key, number in numbers if isinstance(number, int)}


def remember_attention(settings: Settings, numbers: Mapping[str, int]) -> None:
    """Save what needs a person; what was saved stays when that fails, which raises an error."""
    _put(settings.lake, _ATTENTION, json.dumps(numbers, sort_keys=True))


def _declared(stream: Stream) -> tuple[str, ...]:
    workers = stream.workers
    if isinstance(workers, ByKey):
        return tuple(str(number) for number in range(workers.count))
    return workers.labels or () if isinstance(workers, ByColumn) else ()


def _captured(lake: str) -> Mapping[str, tuple[str, ...]]:
    """The labels that captures have saved, by stream; none when they cannot be read."""
    try:
        content = json.loads(_read(lake, _LABELS) or "{}")
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    lists = {name: labels for name, labels in content.items() if isinstance(labels, list)}
    return {name: tuple(str(label) for label in labels) for name, labels in lists.items()}


def _read(lake: str, name: str) -> str | None:
    """The text of a file at the top of the lake; None if it cannot be read."""
    try:
        if "://" in lake:
            from capstan.storage.lake import read_text

            return read_text(f"{lake}/{name}")
        return Path(lake, name).read_text(encoding="utf-8")
    except (OSError, ValueError, CapstanError):
        return None


def _write(lake: str, name: str, text: str) -> None:
    """Write a file at the top of the lake, atomically; a failure to write is ignored."""
    with suppress(OSError, CapstanError):
        _put(lake, name, text)


def _put(lake: str, name: str, text: str) -> None:
    """Write a file at the top of the lake, atomically."""
    if "://" in lake:
        from capstan.storage.lake import write_text

        write_text(f"{lake}/{name}", text)
        return
    with replacing(Path(lake, name)) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
