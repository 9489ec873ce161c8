"""A small stream: a few hundred rows in four files, with every kind of row that capture handles.

Three sites are the workers. One of them appears only in the second file, the third file does not
advance the watermark, and some rows are late, without a time or without a site.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from capstan.core.config import ProjectConfig, Replay, Transform
from tests.support import several_streams
from tests.support.pipeline_samples import REFERENCES
from tests.support.sample_streams import HOUR, NAME, Row, declared, lay, little_stream

__all__ = [
    "AGAIN",
    "BACKFILLED",
    "BEFORE",
    "FILES",
    "NAME",
    "REPLAYED_OVER",
    "REQUESTS",
    "SINCE",
    "STAGED",
    "UNTIL",
    "declaration_text",
    "declarations",
    "feed",
    "rows_of",
]

SINCE, UNTIL = "2024-03-01T03:00:00Z", "2024-03-01T09:00:00Z"
"""A range of the stream that is complete once its four files are captured."""

STAGED: dict[str, object] = {
    "into": "staged",
    "workers": ["north", "west"],
    "since": SINCE,
    "until": UNTIL,
}
BEFORE: dict[str, object] = {
    **STAGED,
    "workers": ["north", "south"],
    "until": "2024-03-01T06:00:00Z",
}
"""Request that puts other rows into the target of `STAGED`, some of them overlapping."""

REQUESTS: dict[str, dict[str, object]] = {
    "staged": STAGED,
    "follow": {"into": "followed", "follow": "nightly", "transform": "hourly"},
    "append": {**STAGED, "into": "appended", "mode": "append"},
    "merge": {**STAGED, "into": "merged", "mode": "merge", "keys": ["id"]},
    "piped": {
        "into": "piped",
        "since": SINCE,
        "until": UNTIL,
        "pipeline": "places",
        "sink": "hours",
    },
}
"""Replays of the stream, by name: fields of `capstan.replay.planning.request.Request`."""

AGAIN = "again"
"""A stream with the same records, by other workers, for replays of two streams."""

_MIDDLE = "2024-03-01T06:00:00Z"
_VERSIONS: dict[str, object] = {
    "into": "versions",
    "mode": "merge",
    "keys": ["place"],
    "sequence_by": ["at", "id"],
    "delete_when": "amount > 60",
    "history": True,
}
_JOINED: dict[str, object] = {
    "into": "joined",
    "stream": f"{NAME}+{AGAIN}",
    "streams": {"orders": NAME, "payments": AGAIN},
    "pipeline": "paid",
    "since": SINCE,
}
REPLAYED_OVER: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    # An older range after a newer one: its last versions end where the newer ones begin.
    "versions": (
        {**_VERSIONS, "since": _MIDDLE, "until": UNTIL},
        {**_VERSIONS, "since": SINCE, "until": _MIDDLE},
    ),
    "joined": ({**_JOINED, "until": _MIDDLE}, {**_JOINED, "until": UNTIL}),
}
"""A merge by sequence and a replay of two streams, by their target, each after another one."""

BACKFILLED = Replay(
    name="hours",
    stream=NAME,
    target="backfilled",
    workers=("north", "west"),
    since=datetime(2024, 3, 1, 3, tzinfo=UTC),
    until=datetime(2024, 3, 1, 9, tzinfo=UTC),
)
"""A declared replay of the rows of `STAGED`."""

_START = datetime(2024, 3, 1, tzinfo=UTC)
_SITES = ("north", "south", "west")
# Per file: number of sites, first and last minute, and the minute of its late rows.
_FILES = (
    (2, 0, 360, None),
    (3, 360, 720, 30),
    (3, 610, 700, 400),
    (3, 720, 1080, 500),
    (3, 1080, 1200, 600),
    (3, 1200, 1320, 700),
)
FILES = 4
"""Default number of files of `feed`."""


def feed(folder: Path, files: int = FILES, *, first: int = 0) -> None:
    """Write files of the stream to `folder`, as a source that micro-batches read one by one.

    Args:
        folder: Created if it does not exist.
        files: Number of files, at most six.
        first: Number of the first file; a second call can continue a first one.
    """
    for number in range(first, first + files):
        # Spark reads the oldest file first: their order must not depend on the clock.
        lay(folder, f"part-{number}", rows_of(number), _START + timedelta(days=number))


def rows_of(number: int) -> list[Row]:
    """The rows of one file, the same each time."""
    sites, begin, end, late = _FILES[number]
    rows = [_row(number, i, _SITES[i % sites], begin + (i * 37) % (end - begin)) for i in range(80)]
    if late is not None:
        rows += [_row(number, 80 + i, _SITES[i % sites], late + i) for i in range(6)]
    return [*rows, _row(number, 90, "north", None), _row(number, 91, None, begin + 1)]


def _row(number: int, i: int, site: str | None, minute: int | None) -> Row:
    at = None if minute is None else _START + timedelta(minutes=minute, seconds=i)
    return (1000 * number + i, site, at, None if i % 11 == 0 else (i * i) % 97, None)


def declaration_text(folder: Path) -> str:
    """The stream, pipelines and replay as the text of a file of declarations."""
    return f"""
streams:
  {NAME}:
    source:
      format: parquet
      path: {folder}
      options: {{maxFilesPerTrigger: 1}}
      schema: id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING
    workers: {{by: column, column: place}}
    time: {{domain: event, column: at, every: 1 hour, lateness: 2 hours}}
pipelines:
  places: {REFERENCES["places"]}
replays:
  filled: {{stream: {NAME}, target: filled}}
"""


def declarations(folder: Path) -> ProjectConfig:
    """Declarations of the stream, its pipelines and transforms, and a replay of it.

    The transform `hourly` is correct, and `wrong` passes no audit; gaps of `filled` can be filled.
    """
    wrong = Transform(name="wrong", function="tests.support.sample_streams:counting", time="event")
    hourly = Transform(
        name="hourly",
        sql=(
            "SELECT _worker, _time.event AS hour, count(*) AS rows_seen, sum(amount) AS total "
            "FROM records GROUP BY _worker, _time.event"
        ),
        time="hour",
        grain=HOUR,
        worker="_worker",
    )
    filled = Replay(name="filled", stream=NAME, target="filled")
    return replace(
        declared(little_stream(folder), (hourly, wrong)),
        pipelines={**REFERENCES, **several_streams.REFERENCES},
        replays={replay.name: replay for replay in (filled, BACKFILLED)},
    )
