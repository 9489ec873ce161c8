"""Small streams for tests: rows with a key, a time and a value, written file by file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from capstan.core.config import (
    ByColumn,
    EventTime,
    LatePolicy,
    ProjectConfig,
    Source,
    Stream,
    Target,
    Transform,
)
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.storage.lake import Lake

NAME = "little"
START = datetime(2024, 5, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MARKET_EVENTS = 3_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.int32()),
        ("note", pa.string()),
    ]
)
_laid = itertools.count()
Row = tuple[int, str | None, datetime | None, int | None, str | None]

SUM_BY_DAY = Transform(
    name="sum_by_day",
    sql=(
        "SELECT _worker, date_trunc('DAY', _time.event) AS day, count(*) AS rows, "
        "sum(amount) AS amount FROM records GROUP BY _worker, date_trunc('DAY', _time.event)"
    ),
    time="day",
    grain=timedelta(days=1),
    worker="_worker",
)


def rows(numbers: Iterable[int], *, step: timedelta = HOUR / 2) -> list[Row]:
    """Rows in order of time: row n is `step` after row n - 1, at one of three places."""
    return [
        (n, "abc"[n % 3], START + n * step, n * 7 % 100, None if n % 5 == 0 else f"note {n}")
        for n in numbers
    ]


def lay(folder: Path, name: str, content: Sequence[Row], moment: datetime | None = None) -> None:
    """Write one Parquet file; files are read in the order of their modification times.

    Args:
        folder: Created if it does not exist.
        name: Name of the file, without its suffix.
        content: Its rows.
        moment: Its modification time; by default later than all files of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*content, strict=True), SCHEMA, strict=True)
    ]
    pq.write_table(pa.table(columns, schema=SCHEMA), folder / f".{name}")
    # Two files with the same millisecond would have no order.
    written = moment.timestamp() if moment else START.timestamp() + next(_laid)
    os.utime(folder / f".{name}", (written, written))
    (folder / f".{name}").rename(folder / f"{name}.parquet")


def lay_in(folder: Path, content: Sequence[Row], files: int) -> None:
    """Write rows to several files, in their order."""
    size = -(-len(content) // files)
    for number in range(files):
        part = content[number * size : (number + 1) * size]
        if part:
            lay(folder, f"part-{number:04}", part)


def little_stream(folder: Path, **changes: object) -> Stream:
    """A stream over `folder`: one worker per place, hourly times, two hours of lateness."""
    stream = Stream(
        name=NAME,
        source=Source(
            format="parquet",
            path=str(folder),
            options={"maxFilesPerTrigger": "1"},
            schema="id BIGINT, place STRING, at TIMESTAMP, amount INT, note STRING",
        ),
        workers=ByColumn(by="column", column="place"),
        time=EventTime(domain="event", column="at", every=HOUR, lateness=2 * HOUR),
        late=LatePolicy.DEAD_LETTER,
    )
    return replace(stream, **changes)  # type: ignore[arg-type]


def declared(
    stream: Stream,
    transforms: Iterable[Transform] = (SUM_BY_DAY,),
    targets: Mapping[str, Target] | None = None,
) -> ProjectConfig:
    """Declarations with one stream."""
    return ProjectConfig(
        path=Path("streams.yaml"),
        streams={stream.name: stream},
        transforms={transform.name: transform for transform in transforms},
        targets=dict(targets or {}),
        replays={},
    )


# The results differ between processes, too.
_calls = itertools.count(os.getpid() << 20)


def counting(records: DataFrame) -> DataFrame:
    """A transform that is wrong on purpose: each use gives another result."""
    number = F.lit(next(_calls)).cast("bigint").alias("number")
    return records.select(F.col("_time.event").alias("event"), "id", number)


def plan_of(lake: Lake, **fields: object) -> Plan:
    """The plan of a replay of the little stream into the table `t`; no source is read."""
    declarations = declared(little_stream(Path(lake.root)))
    return make_plan(lake, declarations, Request(NAME, "t", **fields))  # type: ignore[arg-type]
