"""Records of `late` that return repaired: onto the tape, once each, and those that stay."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import polars as pl
import pytest

from capstan.capture.batch.causes import is_unread
from capstan.capture.dead_letters import drop, fix
from capstan.capture.drop_request import Drop
from capstan.capture.fix_request import Fix
from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.repair import Repair
from capstan.capture.run import capture, close, put_back
from capstan.core.config import (
    ByColumn,
    ByKey,
    ByPartition,
    EpochTime,
    EventTime,
    Source,
    Stream,
    Target,
)
from capstan.core.config.sql_rules import select_list
from capstan.errors import InvalidRequestError, RangeLockedError
from capstan.replay.planning.request import Request
from capstan.replay.run import replay
from capstan.reporting.listings import late_facts
from capstan.storage.late.late_rows import LateSelection, count_late
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.verify import verify
from tests.support import lake_contents
from tests.support.sample_streams import HOUR, START, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

DOCS = Path(__file__).parents[2] / "docs"
DAY = "2024-05-01T"
FILES = {
    "0": [f"a;{DAY}00:00:00Z;1", f"b;{DAY}05:00:00Z;2"],
    "1": [
        f"a;{DAY}06:10:00Z;1,204",
        f"a;{DAY}00:30:00Z;9,1",
        f"b;{DAY}06:15:00Z;7;8",
        f"a;{DAY}07:00:00Z;3",
    ],
    "2": [f"b;{DAY}06:20:00Z;n/a", f"c;{DAY}06:20:00Z;5,0", "b;never;6,0"],
}
MALFORMED = LateSelection("malformed")


def of_lines(folder: Path) -> Stream:
    """A stream of lines, one file per batch, of which some amounts do not parse."""
    folder.mkdir()
    for number, (name, lines) in enumerate(FILES.items()):
        file = folder / f"{name}.csv"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        moment = START.timestamp() + number
        os.utime(file, (moment, moment))
    options = {"sep": ";", "maxFilesPerTrigger": "1"}
    schema = "place STRING, at TIMESTAMP, amount BIGINT"
    return Stream(
        name="little",
        source=Source("csv", str(folder), options, schema=schema),
        workers=ByColumn(column="place"),
        time=EventTime(column="at", every=HOUR, lateness=2 * HOUR),
    )


def told() -> tuple[str, ...]:
    """The fix that the documentation shows."""
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    [sql] = set(re.findall(r'--fix "([^"]+)"', text))
    return tuple(select_list(sql))


def contents(lake: Lake) -> object:
    """The tape as a fix may change it, and its version."""
    paths = lake.stream("little")
    return (
        lake_contents.tape(lake, "little"),
        lake_contents.feed(lake, "little"),
        format_of(paths.events),
    )


def test_malformed_lines_return_repaired_and_the_source_adds_up(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    stream = of_lines(tmp_path / "source")
    capture(spark, lake, stream)
    before, cut = contents(lake), newest_cut(open_tape(lake, "little"))
    of_file = LateSelection("malformed", file="1.csv")

    # Tried first, and nothing is written.
    tried = fix(spark, lake, stream, Fix("ann", told(), of_file, dry_run=True))
    assert (tried.batch, tried.repair.records, tried.repair.wrong) == (None, 2, {"malformed": 1})
    assert contents(lake) == before
    assert tried.repair.cells == [
        {"worker": "a", "time": f"{DAY}05:00:00.000000Z", "records": 1},
        {"worker": "a", "time": f"{DAY}06:00:00.000000Z", "records": 1},
    ]
    [first, _] = tried.repair.repaired_as
    assert first["record"] == FILES["1"][0]
    assert '"amount":1204' in str(first["becomes"])
    assert tried.repair.still_wrong == [{"record": FILES["1"][2], "reason": "malformed"}]

    done = fix(spark, lake, stream, Fix("ann", told(), of_file))

    assert (done.batch, done.repair) == (cut.batch + 1, tried.repair)
    assert dict(done.left) == {"malformed": 4}
    tape = open_tape(lake, "little")
    assert format_of(tape.paths.events) == 5
    [entry] = late_facts(lake, "little")["repaired"]
    assert (entry["records"], entry["by"], entry["fix"]) == (2, "ann", list(told()))
    # As of a commit before it, they were not repaired.
    assert count_late(tape, cut) == {"malformed": 6}
    assert verify(spark, lake, tape, deep=True).valid
    # Once each.
    after = contents(lake)
    again = fix(spark, lake, stream, Fix("ann", told(), of_file))
    assert (again.batch, again.repair.records, again.repair.wrong) == (None, 0, {"malformed": 1})
    assert contents(lake) == after

    # An amount that is said to be none is none. Worker c has no record yet; `never` is not read.
    amount = "CAST(nullif(replace(split(raw, ';')[2], ',', ''), 'n/a') AS BIGINT) AS amount"
    done = fix(spark, lake, stream, Fix("ann", (amount,), LateSelection("malformed", file="2.csv")))
    assert (done.repair.records, done.repair.wrong) == (1, {"malformed": 1, "unknown-worker": 1})
    assert drop(spark, lake, "little", Drop("bob", "no use")).records == 3
    assert put_back(spark, lake, "little").records == 0
    compared = reconcile(spark, open_tape(lake, "little"), stream)
    parts = (compared.on_tape, compared.repaired, compared.dropped, compared.dead)
    assert (compared.in_source, *parts, compared.agrees) == (9, 3, 3, 3, 0, True)

    # Captures go on, and all is replayed.
    (tmp_path / "source" / "3.csv").write_text(f"a;{DAY}09:00:00Z;4\n", encoding="utf-8")
    assert capture(spark, lake, stream).records == 1
    close(spark, lake, "little")
    certificate = replay(spark, lake, declared(stream), Request("little", "all")).certificate
    assert (certificate.records, certificate.to_json()["late"]) == (7, {})
    amounts = pl.read_delta(lake.table("all"))["amount"].to_list()
    assert sorted(amounts, key=str) == [1, 1204, 2, 3, 4, 91, None]
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


@pytest.mark.parametrize(
    ("select", "problem"),
    [
        ("CAST(split(raw, ';')[2] AS BIGINT) AS amount", "fails for a record: CAST_INVALID_INPUT"),
        ("nope(raw) AS place", "calls nope, which is no function of Spark"),
        ("a.b.nope(raw) AS place", "calls a.b.nope, which is no function of Spark"),
        ("mine(raw) AS place", "calls mine, which is no function of Spark"),
        ("IDENTIFIER('my' || 'own')(raw) AS place", "calls a function that IDENTIFIER names"),
        ("explode(split(raw, ';')) AS place", "makes several records of one"),
        ("max(raw) AS place", "takes more than one record at a time"),
        ("raw IN (TABLE t) AS place", "cannot be computed|has a subquery"),
        ("nothing AS place", "cannot be computed"),
        ("raw AS here", "gives here, which is no column"),
        ("upper(data.place)", "gives upper.* no column"),
        ("1 AS amount", "gives amount as int, but it is bigint"),
        ("raw AS place, raw AS place", "gives place more than once"),
    ],
)
def test_a_fix_that_is_refused_changes_nothing(
    spark: SparkSession, lake: Lake, tmp_path: Path, select: str, problem: str
) -> None:
    stream = of_lines(tmp_path / "source")
    capture(spark, lake, stream)
    before = contents(lake)
    own = spark.newSession()
    own.udf.register("mine", lambda text: text)
    with pytest.raises(InvalidRequestError, match=f"CAP-SELECT.*the fix.*({problem})"):
        fix(own, lake, stream, Fix("ann", tuple(select_list(select)), MALFORMED))
    assert contents(lake) == before


def test_records_without_time_or_worker_are_judged_again(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source, after = tmp_path / "source", START + 30 * HOUR
    lay(source, "0", rows(range(40)))
    lay(source, "1", [(500, "a", None, 1, ""), (501, None, after, 1, ""), (502, "z", after, 1, "")])
    time = EventTime(column="at", every=HOUR, lateness=2 * HOUR, max_ahead=timedelta(days=1))
    stream = little_stream(source, time=time)
    stream = replace(stream, workers=ByColumn(column="place", labels=("a", "b", "c")))
    capture(spark, lake, stream)

    def repaired(reason: str, *select: str) -> tuple[int, dict[str, int]]:
        done = fix(spark, lake, stream, Fix("ann", select, LateSelection(reason)))
        return done.repair.records, done.repair.wrong

    far = "timestamp '2999-01-01 00:00:00' AS at"
    assert repaired("no-time", "CAST(NULL AS TIMESTAMP) AS at") == (0, {"no-time": 1})
    assert repaired("no-time", far) == (0, {"ahead": 1})
    assert repaired("no-time", "timestamp '2024-05-01 00:00:00' AS at") == (1, {})
    assert repaired("unknown-worker", "coalesce(data.place, 'a') AS place") == (
        1,
        {"unknown-worker": 1},
    )
    assert repaired("unknown-worker", "'b' AS place") == (1, {})
    records = pl.read_delta(lake.stream("little").records).unnest("data", "time")
    back = records.filter(pl.col("id") >= 500).sort("id")
    # What was too late stays at the frontier; what comes after it at its own hour.
    assert back["event"].to_list() == [START + 17 * HOUR, after, after]
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid
    # The first one's own time is another one: a table by that column has no place for it.
    close(spark, lake, "little")
    target = Target(name="own", worker="place", time="at", columns=("id", "place", "at"))
    config = declared(stream, targets={"own": target})
    with pytest.raises(InvalidRequestError, match=r"CAP-OWN-TIME.*1 late records"):
        replay(spark, lake, config, Request("little", "own"))


@pytest.mark.parametrize(
    "workers", [ByPartition(), ByKey(columns=("place",), count=2)], ids=lambda each: each.by
)
def test_a_record_returns_to_the_worker_that_it_belongs_to(
    spark: SparkSession, lake: Lake, tmp_path: Path, workers: ByPartition | ByKey
) -> None:
    source = tmp_path / "source"
    for place in "ab":
        (source / place).mkdir(parents=True)
        lines = [f'{{"place":"{place}","n":1}}', f'{{"place":"{place}","n":"x"}}']
        (source / place / "0.json").write_text("\n".join(lines), encoding="utf-8")
    source_of = Source("json", str(source), schema="place STRING, n INT")
    stream = Stream(name="little", source=source_of, workers=workers, time=EpochTime())
    assert capture(spark, lake, stream).records == 2
    done = fix(spark, lake, stream, Fix("ann", ("0 AS n",), MALFORMED))
    assert (done.repair.records, dict(done.left)) == (2, {})
    records = pl.read_delta(lake.stream("little").records).unnest("data", "time")
    assert records.filter(pl.col("n") == 0)["epoch"].to_list() == [done.batch] * 2
    assert records.group_by("place").agg(pl.col("worker").n_unique())["worker"].to_list() == [1, 1]
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid


def test_of_a_fix_and_a_drop_at_once_the_second_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    stream = of_lines(tmp_path / "source")
    capture(spark, lake, stream)
    write = Repair.write

    def outrun(repair: Repair, decision: str) -> int:
        written = write(repair, decision)
        drop.__wrapped__(spark, lake, "little", Drop("bob", "first"))  # type: ignore[attr-defined]
        return written

    of_file = LateSelection("malformed", file="1.csv")
    with (
        patch.object(Repair, "write", outrun),
        pytest.raises(RangeLockedError, match="CAP-CONFLICT"),
    ):
        fix(spark, lake, stream, Fix("ann", told(), of_file))
    tape = open_tape(lake, "little")
    assert count_late(tape, newest_cut(tape)) == {}
    assert pl.read_delta(tape.paths.records).height == 3
    # What the second one had written means nothing.
    drop(spark, lake, "little", Drop("bob", undo=newest_cut(tape).batch))
    assert fix(spark, lake, stream, Fix("ann", told(), of_file)).repair.records == 2


def test_times_and_workers_are_those_of_the_tape(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    stream = of_lines(tmp_path / "source")
    capture(spark, lake, stream)
    other = replace(stream, workers=ByColumn(column="amount"))
    with pytest.raises(InvalidRequestError, match=r"CAP-DECLARED.*workers\.column place"):
        fix(spark, lake, other, Fix("ann", told(), MALFORMED))


@pytest.mark.parametrize(
    ("select", "given", "unread"),
    [
        ((), {"n"}, True),
        ((), {"s"}, True),
        ((), {"n", "s"}, False),
        (("from_json(v, 'n BIGINT').n AS n", "v AS s"), {"n"}, True),
        (("from_json(v, 'n BIGINT').n AS n", "v AS s"), {"n", "s"}, False),
    ],
)
def test_what_is_missing_inside_of_a_value_is_not_known(
    spark: SparkSession, select: tuple[str, ...], given: set[str], unread: bool
) -> None:
    """A record stays dead unless a fix gives all in which there may be something else."""
    schema = "n BIGINT, s STRUCT<x: BIGINT>"
    plain = Source("json", "/nowhere", schema=schema)
    source = replace(plain, select=select) if select else plain
    stream = Stream(name="s", source=source, workers=ByKey(("n",), 1), time=EpochTime())
    payload = spark.createDataFrame([], schema).schema
    text = spark.createDataFrame([('{"n": "oops", "s": {"x": 1}}', None)], "raw STRING, n BIGINT")
    row = text.selectExpr("raw", "named_struct('n', n, 's', named_struct('x', 1L)) AS data")
    [(actual,)] = row.select(is_unread(stream, payload, (), given)).collect()
    assert actual is unread
