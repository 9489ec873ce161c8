"""A little stream: a few hundred rows in four files, with every kind of row that capture knows.

Three sites are the workers. One of them shows up in the second file only, the third file does not
move the watermark, and rows come late, without a time and without a site.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from capstan.declare import ByColumn, Declarations, EventTime, Source, Stream, Transform

NAME = "little"
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
"""What puts other rows into the target of `STAGED`, some of them in its way."""

REQUESTS: dict[str, dict[str, object]] = {
    "staged": STAGED,
    "direct": {**STAGED, "into": "direct", "direct": True},
    "follow": {"into": "followed", "follow": "nightly", "transform": "hourly"},
    "append": {**STAGED, "into": "appended", "mode": "append"},
}
"""Replays of the stream, by name: fields of `capstan.replay.request.Request`."""

_START = datetime(2024, 3, 1, tzinfo=UTC)
_SITES = ("north", "south", "west")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("site", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.int32()),
    ]
)
# Per file: how many sites, its first and last minute, and the minute its late rows are of.
_FILES = (
    (2, 0, 360, None),
    (3, 360, 720, 30),
    (3, 610, 700, 400),
    (3, 720, 1080, 500),
    (3, 1080, 1200, 600),
    (3, 1200, 1320, 700),
)
FILES = 4
"""How many files `feed` lays down unless told otherwise."""


def feed(folder: Path, files: int = FILES, *, first: int = 0) -> None:
    """Lay down files of the stream in `folder`, as a source that micro-batches read one by one.

    Args:
        folder: Made where it is not there.
        files: How many, at most six.
        first: The first one, so that a second call can go on where another has stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + files):
        path = folder / f"part-{number}.parquet"
        pq.write_table(pa.Table.from_pylist(rows_of(number), schema=SCHEMA), path)
        # Spark reads the oldest file first: their order must not depend on the clock.
        moment = (_START + timedelta(days=number)).timestamp()
        os.utime(path, (moment, moment))


def rows_of(number: int) -> list[dict[str, object]]:
    """The rows of one file, the same each time."""
    sites, begin, end, late = _FILES[number]
    rows: list[dict[str, object]] = []
    for i in range(80):
        minute = begin + (i * 37) % (end - begin)
        rows.append(_row(number, i, _SITES[i % sites], minute))
    if late is not None:
        rows += [_row(number, 80 + i, _SITES[i % sites], late + i) for i in range(6)]
    rows.append({**_row(number, 90, "north", begin), "at": None})
    rows.append({**_row(number, 91, "south", begin + 1), "site": None})
    return rows


def _row(number: int, i: int, site: str, minute: int) -> dict[str, object]:
    return {
        "id": 1000 * number + i,
        "site": site,
        "at": _START + timedelta(minutes=minute, seconds=i),
        "amount": None if i % 11 == 0 else (i * i) % 97,
    }


def stream(folder: Path) -> Stream:
    """The declaration of the stream whose files lie in `folder`: a micro-batch is a file."""
    return Stream(
        name=NAME,
        source=Source(
            format="parquet",
            path=str(folder),
            options={"maxFilesPerTrigger": "1"},
            schema="id BIGINT, site STRING, at TIMESTAMP, amount INT",
        ),
        workers=ByColumn(column="site"),
        time=EventTime(column="at", every=timedelta(hours=1), lateness=timedelta(hours=2)),
    )


def declarations(folder: Path) -> Declarations:
    """What may be captured and replayed: the stream, and a transform `hourly` of it."""
    hourly = Transform(
        name="hourly",
        sql=(
            "SELECT _worker, _time.event AS hour, count(*) AS rows_seen, sum(amount) AS total "
            "FROM records GROUP BY _worker, _time.event"
        ),
        time="hour",
        grain=timedelta(hours=1),
        worker="_worker",
    )
    streams = {NAME: stream(folder)}
    return Declarations(folder / "streams.yaml", streams, {"hourly": hourly}, {}, {})
