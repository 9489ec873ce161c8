"""Writes a project: declarations, a DAG file, a pipeline, and a week of sample orders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from capstan.core.config.models import SCHEMA
from capstan.errors import InvalidRequestError

_TEMPLATES: Final = Path(__file__).with_name("templates")
_FILES: Final = (
    "streams.yaml",
    "capstan_dags.py",
    "capstan_declarations.py",
    "capstan_pipelines.py",
)


class FileStatus(StrEnum):
    """How a file of the project came to be as it is."""

    CREATED = "created"
    """It was not there."""
    UNCHANGED = "unchanged"
    """It is as `capstan init` writes it."""
    KEPT = "kept"
    """It was edited, or is of another version of Capstan; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """A file of the project."""

    path: Path
    status: FileStatus


def write_project(folder: Path, *, airflow: Path | None = None) -> list[ProjectFile]:
    """Write the files of a new project; files that exist are never changed.

    Declarations and DAG files go into the Airflow DAG folder, if one is given, else into `dags`.
    """
    dags = airflow if airflow is not None else folder / "dags"
    sample = folder / "sample_data" / "orders"
    try:
        return [_write(path, content) for path, content in _contents(dags, sample)]
    except OSError as error:
        place = error.filename or folder
        raise InvalidRequestError(
            "CAP-INIT",
            f"{place} cannot be written: {error.strerror or error}",
            "name a folder that you may write to",
            path=str(place),
        ) from error


def _contents(dags: Path, sample: Path) -> Iterator[tuple[Path, str]]:
    for name in _FILES:
        text = (_TEMPLATES / name).read_text(encoding="utf-8")
        yield dags / name, text.replace("SAMPLE_DATA", _relative(sample, dags))
    yield dags / SCHEMA.name, SCHEMA.read_text(encoding="utf-8")
    for name, text in sample_files():
        yield sample / name, text


def _relative(path: Path, folder: Path) -> str:
    """`path` from the folder of the declarations, so that both can be moved together."""
    return Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()


def _write(path: Path, content: str) -> ProjectFile:
    if path.exists():
        same = path.read_text(encoding="utf-8", errors="replace") == content
        return ProjectFile(path, FileStatus.UNCHANGED if same else FileStatus.KEPT)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(content, encoding="utf-8")
        # A second `capstan init` at the same time must not replace what the first one wrote.
        path.hardlink_to(unfinished)
    except FileExistsError:
        return ProjectFile(path, FileStatus.KEPT)
    finally:
        unfinished.unlink(missing_ok=True)
    return ProjectFile(path, FileStatus.CREATED)


SHOPS: Final = ("berlin", "lisbon", "oslo")
FIRST_DAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
DAYS: Final = 7
_PER_DAY: Final = 72
_ITEMS: Final = ("lamp", "chair", "desk", "shelf", "rug")
# A day's file closes at midnight: the day is complete once the next file has arrived, by this row.
_CLOSING: Final = timedelta(hours=3)


def sample_files() -> Iterator[tuple[str, str]]:
    """Name and text of each file, in the order of arrival.

    Each row has `id` BIGINT, `shop` STRING, `item` STRING, `quantity` INT, `cents` BIGINT and
    `placed_at` TIMESTAMP (UTC); times in a file do not ascend.
    """
    number = 0
    for day in range(DAYS + 1):
        start = FIRST_DAY + timedelta(days=day)
        orders = []
        for turn in range(_PER_DAY if day < DAYS else len(SHOPS)):
            number += 1
            # 37 and 72 have no common divisor: every twentieth minute of the day is met once.
            minute = (turn * 37) % _PER_DAY * 20
            placed = start + (timedelta(minutes=minute) if day < DAYS else _CLOSING)
            orders.append(_order(number, turn, placed))
        yield f"{start:%Y-%m-%d}.json", "".join(json.dumps(order) + "\n" for order in orders)


def _order(number: int, turn: int, placed: datetime) -> dict[str, object]:
    quantity = 1 + number * 7 % 4
    return {
        "id": number,
        "shop": SHOPS[turn % len(SHOPS)],
        "item": _ITEMS[number * 3 % len(_ITEMS)],
        "quantity": quantity,
        "cents": quantity * (1990 + number * 613 % 8000),
        "placed_at": f"{placed:%Y-%m-%dT%H:%M:%SZ}",
    }
