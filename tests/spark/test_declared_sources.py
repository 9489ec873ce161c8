"""Sources as they are declared: integers as times, selected columns, functions, tables, globs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capstan.capture import classify
from capstan.capture.run import capture
from capstan.core.config import EventTime, LatePolicy, Source, Stream, TimeUnit
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake, exists
from capstan.storage.tape.tape import open_tape
from capstan.verify import verify
from tests.support.sample_streams import HOUR, START, little_stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

SECONDS = classify.since_epoch(START) // 10**6
YEAR_10000 = 253_402_300_800


class TestUnits:
    """Integers that count from 1970 are times, and those beyond all years are none."""

    def stream(self, folder: Path, counts: pa.Array, **time: object) -> Stream:
        folder.mkdir(exist_ok=True)
        table = pa.table({"n": range(len(counts)), "count": counts, "place": ["a"] * len(counts)})
        pq.write_table(table, folder / "0.parquet")
        return little_stream(
            folder,
            source=Source(format="parquet", path=str(folder)),
            time=EventTime(every=HOUR, lateness=2 * HOUR, **time),  # type: ignore[arg-type]
        )

    @pytest.mark.parametrize("unit", list(TimeUnit))
    @pytest.mark.parametrize("how", ["column", "expression"])
    def test_each_unit(
        self, spark: SparkSession, lake: Lake, tmp_path: Path, unit: TimeUnit, how: str
    ) -> None:
        each = 10**6 // unit.micros
        counts = [SECONDS * each, (SECONDS + 5400) * each, YEAR_10000 * each, None]
        counts += [2**63 - 1, -(2**62)]
        given = {"column": "count"} if how == "column" else {"expression": "count + 0"}
        stream = self.stream(tmp_path / "src", pa.array(counts, pa.int64()), unit=unit, **given)
        done = capture(spark, lake, stream)
        # In microseconds, that is a moment long before the year 1.
        before = {"below-minimum": 1} if unit is TimeUnit.MICROSECONDS else {}
        assert done.late == {"no-time": 4 - len(before), **before}
        tape = open_tape(lake, "little")
        times = pl.read_delta(tape.paths.records)["time"].struct.field("event").sort()
        assert times.to_list() == [START, START + HOUR]
        assert verify(spark, lake, tape, deep=True).valid
        with pytest.raises(InvalidRequestError, match=r"CAP-DECLARED.*time\.unit .*, but is"):
            other = next(each for each in TimeUnit if each is not unit)
            time = replace(stream.time, unit=other)  # type: ignore[type-var]
            capture(spark, lake, replace(stream, time=time))

    @pytest.mark.parametrize(
        ("kind", "time", "said"),
        [
            (pa.int32(), {"column": "count"}, r"count is integer .*time\.unit: s, ms or us"),
            (pa.int64(), {"column": "count"}, r"count is long .*time\.unit: s, ms or us"),
            (pa.timestamp("us", "UTC"), {"column": "count", "unit": "s"}, "is timestamp .*remove"),
            (pa.int64(), {"column": "gone", "unit": "s"}, "gone is not in the source"),
            (pa.int64(), {"expression": "count / 2", "unit": "s"}, "expression is double"),
            (pa.int64(), {"expression": "string(count)", "unit": "s"}, "is string, but time.unit"),
        ],
    )
    def test_other_types_are_refused(
        self,
        spark: SparkSession,
        lake: Lake,
        tmp_path: Path,
        kind: pa.DataType,
        time: dict[str, str],
        said: str,
    ) -> None:
        counts = pa.array([1], pa.int32()).cast(pa.int64()).cast(kind)
        stream = self.stream(tmp_path / "src", counts, **time)
        with pytest.raises(InvalidRequestError) as refused:
            capture(spark, lake, stream)
        assert refused.value.code == "CAP-TIME-COLUMN"
        assert re.search(said, f"{refused.value.message} {refused.value.hint}")
        assert not exists(lake.stream("little").root)

    def test_an_expression_that_fails_is_no_time(
        self, spark: SparkSession, lake: Lake, tmp_path: Path
    ) -> None:
        counts = pa.array([str(SECONDS), "rubbish", "", None])
        how = {"expression": "CAST(count AS BIGINT)", "unit": TimeUnit.SECONDS}
        stream = self.stream(tmp_path / "src", counts, **how)
        done = capture(spark, lake, replace(stream, late=LatePolicy.FAIL))
        assert (done.records, done.late) == (1, {"no-time": 3})
