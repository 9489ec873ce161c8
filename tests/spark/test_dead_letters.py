"""Records that are not on tape: why, by cause; and how they return or are dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from capstan.capture.dead_letters import drop
from capstan.capture.drop_request import Drop
from capstan.capture.query.source_reconciliation import reconcile
from capstan.capture.run import capture, put_back
from capstan.core.config import ByColumn, EpochTime, Source, Stream
from capstan.errors import InvalidRequestError
from capstan.reporting.listings import late_facts
from capstan.storage.late.late_rows import LateSelection, count_late
from capstan.storage.tape.tape import format_of, newest_cut, open_tape
from capstan.verify import verify
from tests.support import lake_contents
from tests.support.sample_streams import START, lay, little_stream, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from capstan.storage.lake import Lake

SCHEMA = "place STRING, n INT, v DOUBLE, day INT"
LINES = {
    "csv": ["a,1,0.5", "a,x,1", "b,y,z", "b,3,4,5", "b,9,w"],
    "json": [
        '{"place":"a","n":1,"v":0.5}',
        '{"place":"a","n":"x","v":1}',
        '{"place":"b","n":"y","v":"z"}',
        '{"place":"b"} {"n":1}',
        '{"place":"b","n":',
        '{"place":"b","n":9,"v":"w"}',
    ],
}
ONE, TWO = "does not parse into", "do not parse into their types"
CAUSES = {
    "csv": {
        ("n", f"{ONE} INT"),
        ("v", f"{ONE} DOUBLE"),
        ("n, v", TWO),
        (None, "has more fields than the stream has columns"),
    },
    "json": {
        ("n", f"{ONE} INT"),
        ("v", f"{ONE} DOUBLE"),
        ("n, v", TWO),
        (None, "has something behind its first value"),
        (None, "is no JSON object"),
    },
}


def of_text(folder: Path, kind: str) -> Stream:
    """A stream of lines by place; the first file has one line alone, which parses.

    The last column is that of a folder.
    """
    day = folder / "day=1"
    day.mkdir(parents=True)
    first, *rest = LINES[kind]
    (day / f"0.{kind}").write_text(f"{first}\n", encoding="utf-8")
    (day / f"1.{kind}").write_text("\n".join(rest) + "\n", encoding="utf-8")
    source = Source(kind, str(folder), {"maxFilesPerTrigger": "2"}, schema=SCHEMA)
    return Stream(name="text", source=source, workers=ByColumn(column="place"), time=EpochTime())


@pytest.mark.parametrize("kind", sorted(LINES))
def test_malformed_records_are_told_apart_by_cause_and_file(
    spark: SparkSession, lake: Lake, tmp_path: Path, kind: str
) -> None:
    # A folder above the source, which looks like one of a column, defines none.
    declared = of_text(tmp_path / "n=1" / "source", kind)
    done = capture(spark, lake, declared)
    assert (done.records, dict(done.late)) == (1, {"malformed": len(LINES[kind]) - 1})
    compared = reconcile(spark, open_tape(lake, "text"), declared)
    assert (compared.on_tape, compared.dead, compared.returned) == (1, len(LINES[kind]) - 1, 0)
    assert (compared.missing, compared.extra, compared.agrees) == (0, 0, True)
    groups = late_facts(lake, "text")["late"]
    assert {(group["field"], group["error"]) for group in groups} == CAUSES[kind]
    assert {group["file"].rpartition("/")[2] for group in groups} == {f"1.{kind}"}
    assert {group["records"] for group in groups} == {1}


def test_records_without_time_or_worker_name_the_column(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    lay(source, "0", [(1, "a", START, 1, ""), (2, None, START, 1, ""), (3, "z", START, 1, "")])
    lay(source, "1", [(4, "a", None, 1, ""), (5, None, START, 1, ""), (6, "a", START, 1, "")])
    stream = little_stream(source)
    declared = replace(stream, workers=ByColumn(column="place", labels=("a", "b")))
    capture(spark, lake, declared)
    groups = late_facts(lake, "little")["late"]
    actual = [
        (each["reason"], each["field"], each["error"], each["file"].rpartition("/")[2])
        for each in groups
    ]
    assert sorted(actual) == [
        ("no-time", "at", "is null", "1.parquet"),
        ("unknown-worker", "place", "is not declared", "0.parquet"),
        ("unknown-worker", "place", "is null", "0.parquet"),
        ("unknown-worker", "place", "is null", "1.parquet"),
    ]
    known = [each for each in groups if each["reason"] == "unknown-worker"]
    assert {each["first_time"] for each in known} == {"2024-05-01T00:00:00.000000Z"}
    assert {each["last_time"] for each in groups if each["reason"] == "no-time"} == {None}


def by(reason: str | None = None, **more: str) -> Drop:
    return Drop("ann", "no use", LateSelection(reason, **more))


def test_dropped_records_are_counted_as_such_until_they_are_opened_again(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    stream = little_stream(source)
    lay(source, "0", rows(range(40)))
    lay(
        source, "1", [(500, "a", START, 1, ""), (501, None, START, 1, ""), (502, "b", START, 1, "")]
    )
    capture(spark, lake, stream)
    tape = open_tape(lake, "little")
    kept, before = lake_contents.rows(tape.paths.late), newest_cut(tape)
    assert format_of(tape.paths.events) == 2

    assert drop(spark, lake, "little", by(cause="amount")).records == 0
    assert (newest_cut(tape), format_of(tape.paths.events)) == (before, 2)
    done = drop(spark, lake, "little", by("unknown-worker", cause="place is null"))

    assert (done.batch, done.records, dict(done.left)) == (2, 1, {"late": 2})
    assert format_of(tape.paths.events) == 5
    assert lake_contents.rows(tape.paths.late) == kept
    [told] = late_facts(lake, "little")["dropped"]
    assert (told["batch"], told["records"], told["by"], told["because"]) == (2, 1, "ann", "no use")
    assert told["selection"] == {"reason": "unknown-worker", "cause": "place is null"}
    # As of a commit before it, they were not dropped.
    assert count_late(tape, before) == {"late": 2, "unknown-worker": 1}

    # A put-back passes over what is dropped, also when it came late.
    assert drop(spark, lake, "little", by("late")).records == 2
    assert put_back(spark, lake, "little").records == 0
    again = drop(spark, lake, "little", Drop("bob", undo=3))
    assert (again.records, dict(again.left)) == (2, {"late": 2})
    assert put_back(spark, lake, "little").records == 2
    assert count_late(tape, newest_cut(tape)) == {}
    compared = reconcile(spark, open_tape(lake, "little"), stream)
    parts = (compared.on_tape, compared.dead, compared.returned, compared.dropped)
    assert (compared.in_source, *parts) == (43, 40, 0, 2, 1)
    assert (compared.missing, compared.extra) == (0, 0)
    assert verify(spark, lake, open_tape(lake, "little"), deep=True).valid
    # Captures go on.
    lay(source, "2", rows(range(40, 44)))
    assert capture(spark, lake, stream).records == 4
    assert drop(spark, lake, "little", Drop("bob", undo=2)).records == 1
    assert count_late(tape, newest_cut(tape)) == {"unknown-worker": 1}


def test_what_cannot_be_opened_again_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    lay(source, "0", rows(range(40)))
    lay(source, "1", [(500, "a", START, 1, "")])
    capture(spark, lake, little_stream(source))
    drop(spark, lake, "little", by())
    lay(source, "2", [(501, "a", START, 1, "")])
    capture(spark, lake, little_stream(source))
    assert put_back(spark, lake, "little").records == 1
    before = lake_contents.tape(lake), lake_contents.feed(lake)
    for batch, problem in ((1, "no records are dropped by batch 1"), (2, "were put back since")):
        with pytest.raises(InvalidRequestError, match=f"CAP-DROPPED.*{problem}"):
            drop(spark, lake, "little", Drop("bob", undo=batch))
    assert (lake_contents.tape(lake), lake_contents.feed(lake)) == before
