"""Declared checks: counted in the pass of the audit, failing in every way, and what they leave."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest
from pyspark.sql import functions as F

from capstan.audit.row_checks import aggregate_with_checks, prepare, results
from capstan.audit.row_view import View
from capstan.capture.run import capture
from capstan.core.config import ProjectConfig, Replay, Target, Transform
from capstan.core.config.row_checks import Check, Range
from capstan.errors import CheckFailedError, InvalidRequestError
from capstan.replay.planning.request import Request
from capstan.replay.result import ReplayResult
from capstan.replay.run import replay
from capstan.replay.standalone_audit import TableAudit, audit_against, audit_run, plan_against
from capstan.storage.lake import Lake, children
from capstan.storage.ledger import runs
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.tables import read_rows
from tests.bench.counters import Watch, commits
from tests.support import lake_contents
from tests.support.sample_streams import SUM_BY_DAY, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.sample_streams import Row

# Half an hour apart: five days, of which all but the last two hours are complete.
ROWS = rows(range(240))
DAY2, DAY4 = "2024-05-02", "2024-05-04"
GOOD = (
    Check(name="paid", sql="amount >= 0 AND _worker IS NOT NULL"),
    Check(unique=("id",)),
    Check(not_null=("id", "place")),
    Check(range=Range("amount", 0, 99)),  # type: ignore[arg-type]
    Check(name="dated", range=Range("at", "2024-05-01", "2024-05-06")),  # type: ignore[arg-type]
)


class Play:
    """The tape of this module, and replays of it into a target with checks."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.lake = spark, Lake.at(folder / "lake")
        lay(folder / "source", "0", ROWS)
        self.stream = little_stream(folder / "source")
        capture(spark, self.lake, self.stream)

    def declared(
        self, into: str, checks: tuple[Check, ...], own: tuple[Check, ...] = ()
    ) -> ProjectConfig:
        transforms = (SUM_BY_DAY, Transform(name="nothing", sql="SELECT * FROM records"))
        actual = declared(self.stream, transforms, {into: Target(name=into, checks=checks)})
        replays = {"own": Replay("own", "little", into, checks=own)}
        return ProjectConfig(
            actual.path, actual.streams, actual.transforms, actual.targets, replays
        )

    def __call__(self, into: str, checks: tuple[Check, ...], **asked: object) -> ReplayResult:
        more = {"since": DAY2, "until": DAY4, **asked}
        request = Request("little", into, **more)  # type: ignore[arg-type]
        return replay(self.spark, self.lake, self.declared(into, checks), request)


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    return Play(spark, tmp_path_factory.mktemp("checks"))


def checks_of(outcome: ReplayResult) -> list[tuple[str, int]]:
    audit = outcome.certificate.audit
    assert isinstance(audit, dict)
    return [(item["name"], item["failing"]) for item in audit["checks"]]


def test_the_certificate_names_every_check(play: Play) -> None:
    done = play("good", GOOD)
    assert checks_of(done) == [
        ("paid", 0), ("unique_id", 0), ("not_null_id_place", 0), ("range_amount", 0), ("dated", 0),
    ]  # fmt: skip
    assert done.certificate.audit["passed"]
    assert done.certificate.published


def scans(play: Play, into: str, checks: tuple[Check, ...], **asked: object) -> list[str]:
    """The tables that a replay reads rows of, once for each scan, without those of the ledgers."""
    with Watch(play.spark) as watch:
        play(into, checks, **asked)
    actual = [scan.path.removeprefix("file:") for e in watch.executions for scan in e.scans]
    root = play.lake.root
    # A scan names the table, or the first of its files: `streams/s/records/...`, `staging/run/...`.
    places = [path.removeprefix(f"{root}/").split("/") for path in actual]
    return sorted(
        f"{parts[0]}/{parts[2 if parts[0] == 'streams' else 1].replace(into, 'T')}"
        for parts in places
        if parts[0] != "ledger" and "_delta_log" not in parts
    )


def test_checks_cost_no_second_scan(play: Play) -> None:
    without, those = (
        [scan.rsplit("-", 3)[0] for scan in scans(play, f"scans_{n}", checks)]
        for n, checks in enumerate(((), GOOD))
    )
    # What is staged is read once, for its audit: the publish writes no row.
    assert those == without == ["streams/records", "tables/T"]


NOON = datetime.fromisoformat("2024-05-02T12:00:00+00:00")
MOST = Check(name="most", range=Range("amount", None, 90))  # type: ignore[arg-type]
BAD: dict[Check, Callable[[Row], bool]] = {
    Check(name="low", sql="amount < 50"): lambda row: (row[3] or 0) >= 50,
    # What is null is not true.
    Check(name="noted", sql="note > ''"): lambda row: row[4] is None,
    Check(unique=("place",)): lambda _: True,
    Check(name="full", not_null=("id", "note")): lambda row: row[4] is None,
    MOST: lambda row: (row[3] or 0) > 90,
    Check(name="late", range=Range("at", NOON, None)): lambda row: row[2] is None or row[2] < NOON,
}


def test_failed_checks_publish_nothing_and_are_noted(play: Play) -> None:
    expected = {check.title: sum(map(wrong, ROWS[48:144])) for check, wrong in BAD.items()}
    assert all(0 < count <= 96 for count in expected.values())
    with pytest.raises(CheckFailedError, match="^CAP-CHECK: ") as caught:
        play("bad", (*GOOD, *BAD))
    error = caught.value
    assert error.exit_code == 1
    printed = (
        f"check low (amount < 50) fails for {expected['low']} of 96 rows; also failed: noted, "
    )
    assert printed in error.message
    assert error.fields["failing"] == expected["low"]
    sample = error.fields["sample"]
    assert isinstance(sample, list)
    assert [row["amount"] >= 50 for row in sample] == [True] * 5
    assert deltalake.DeltaTable(play.lake.table("bad")).to_pyarrow_table().num_rows == 0
    [history] = runs.read_histories(play.lake, target=play.lake.table("bad")).values()
    assert history.last.step is Step.FAILED
    assert history.last.detail["error"] == "CAP-CHECK"

    result_found = read_rows(play.lake, "findings", run=history.last.run)
    assert {row["code"] for row in result_found} == {"CAP-CHECK"}
    assert {row["check_name"]: row["total"] for row in result_found} == expected
    shown = Counter(row["check_name"] for row in result_found)
    assert shown == {name: min(count, 5) for name, count in expected.items()}
    by_name = {check.title: wrong for check, wrong in BAD.items()}
    for row in result_found:
        actual = json.loads(str(row["actual"]))
        assert json.loads(str(row["sample"])) == actual
        assert by_name[str(row["check_name"])](ROWS[actual["id"]])
        assert str(row["time"]).startswith("2024-05-0")


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (Check(unique=("nothing",)), "there is no column nothing"),
        (Check(name="a", sql="nothing > 1"), "UNRESOLVED_COLUMN"),
        (Check(name="a", sql="amount + 1"), "its sql returns int"),
        (Check(name="a", sql="sum(amount) > 1"), "INVALID_WHERE_CONDITION"),
        (Check(name="a", sql="amount >"), "PARSE_SYNTAX_ERROR"),
        (Check(name="a", sql="at < 'tomorrow'"), "its sql takes the moment 'tomorrow'"),
        (Check(range=Range("place", 1, 2)), "column place is string"),  # type: ignore[arg-type]
        (Check(range=Range("at", 1, 2)), "its bound is a number"),  # type: ignore[arg-type]
    ],
)
def test_a_check_that_does_not_fit_is_refused(
    spark: SparkSession, check: Check, problem: str
) -> None:
    frame = spark.createDataFrame([], "place STRING, amount INT, at TIMESTAMP")
    with pytest.raises(InvalidRequestError, match="^CAP-CHECK-COLUMN: check ") as caught:
        prepare([check], frame)
    assert problem in caught.value.message


def test_nothing_is_staged_for_a_check_that_does_not_fit(play: Play) -> None:
    before, staged = commits(play.lake.root), children(play.lake.staging(""))
    with pytest.raises(InvalidRequestError, match="^CAP-CHECK-COLUMN: check unique_nothing "):
        play("misfit", (Check(unique=("nothing",)),))
    assert children(play.lake.staging("")) == staged
    made = {path.relative_to(play.lake.root).parts[0] for path in commits(play.lake.root) - before}
    assert made <= {"ledger"}


def test_a_replay_s_checks_add_to_its_target_s(play: Play) -> None:
    own = Check(name="few", sql="rows < 16")
    declarations = play.declared("by_day", (Check(not_null=("day",)),), (own,))
    requested = Request("little", "by_day", transform="sum_by_day", replay="own")
    with pytest.raises(CheckFailedError, match=r"check few \(rows < 16\) fails for 12 of 12 rows"):
        replay(play.spark, play.lake, declarations, requested)
    plain = Request("little", "by_day", transform="sum_by_day")
    done = replay(play.spark, play.lake, declarations, plain)
    assert checks_of(done) == [("not_null_day", 0)]
    assert done.certificate.audit["kind"] == "transform"
    with pytest.raises(InvalidRequestError, match="CAP-REPLAY"):
        replay(play.spark, play.lake, declarations, Request("little", "by_day", replay="none"))


def test_a_run_that_stands_is_held_against_a_check_that_is_new(play: Play) -> None:
    first = play("newly", ())
    assert play("newly", ()).unchanged
    assert play("newly", GOOD[:1]).unchanged
    with pytest.raises(CheckFailedError, match="CAP-CHECK"):
        play("newly", (MOST,))
    assert play("newly", ()).certificate.run != ""
    assert first.certificate.published


def test_an_audit_tells_differences_and_failed_checks_at_once(play: Play) -> None:
    done = play("damaged", GOOD)
    run, table = str(done.certificate.run), play.lake.table("damaged")
    play.spark.sql(f"UPDATE delta.`{table}` SET amount = 1000 WHERE id IN (60, 61)")
    play.spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 62")
    play.spark.sql(f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}` WHERE id = 63")
    history = runs.read_history(play.lake, run)
    report = audit_run(play.spark, play.lake, play.declared("damaged", GOOD), history)
    audit = report.audit
    assert not audit.passed
    failing = {check.name: check.failing for check in audit.checks if check.failing}
    assert failing == {"range_amount": 2, "unique_id": 2}
    with pytest.raises(CheckFailedError, match="CAP-AUDIT"):
        audit.require_passed("it")

    shown = audit.to_json(report.time_type)
    assert {item["kind"] for item in shown["findings"]} == {  # type: ignore[attr-defined]
        "changed", "missing", "extra", "check",
    }  # fmt: skip
    actual = read_rows(play.lake, "findings", run=run)
    totals = {(row["kind"], row["check_name"]): row["total"] for row in actual}
    assert totals == {
        ("changed", None): 2, ("missing", None): 1, ("extra", None): 1,
        ("check", "range_amount"): 2, ("check", "unique_id"): 2,
    }  # fmt: skip
    changed = next(row for row in actual if row["kind"] == "changed")
    assert json.loads(str(changed["sample"]))["amount"][1] == 1000
    assert list(json.loads(str(changed["sample"]))) == ["amount"]
    assert len({row["at"] for row in actual}) == 1
    assert "ledger/findings" in lake_contents.read_by_others(play.lake)
    # Nothing is ever changed in it.
    ledger = deltalake.DeltaTable(play.lake.ledger("findings"))
    assert ledger.metadata().configuration["delta.appendOnly"] == "true"

    # The same again as a table that stands for itself, and from a version that was sound.
    requested = TableAudit("little", "damaged", since=DAY2, until=DAY4)
    planned = plan_against(play.lake, play.declared("damaged", GOOD), requested)
    assert not audit_against(play.spark, planned, requested).passed
    own = read_rows(play.lake, "findings", run="", target=table)
    assert {row["code"] for row in own} == {
        "CAP-CHANGED", "CAP-MISSING", "CAP-EXTRA", "CAP-CHECK",
    }  # fmt: skip
    version = int(str(done.certificate.target_version))
    declarations = play.declared("damaged", GOOD)
    assert audit_run(play.spark, play.lake, declarations, history, version).audit.passed
    assert len(read_rows(play.lake, "findings", run=run)) == len(actual)


def test_rows_are_read_only_of_cells_that_differ(play: Play) -> None:
    done = play("cells_first", ())
    run, table = str(done.certificate.run), play.lake.table("cells_first")
    records = f"{play.lake.root}/streams/little/records"
    history = runs.read_history(play.lake, run)

    def audited() -> tuple[list[int], list[int]]:
        with Watch(play.spark) as watch:
            audit_run(play.spark, play.lake, play.declared("cells_first", ()), history)
        return (
            [scan.rows for scan in watch.scans(table)],
            [scan.rows for scan in watch.scans(records)],
        )

    assert audited() == ([96], [])
    # A count of the cells' rows that the comparison of rows is given: of two cells, 4 rows each.
    play.spark.sql(f"UPDATE delta.`{table}` SET amount = 1000 WHERE id IN (60, 100)")
    seen: list[int] = []
    from capstan.audit import row_diff as module

    original = module.Side.rows

    def counted(self: module.Side, cells: DataFrame, sign: int) -> DataFrame:
        actual = original(self, cells, sign)
        seen.append(actual.count())
        return actual

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Side, "rows", counted)
        on_table, on_tape = audited()
    cell = sum(1 for n in range(48, 144) if n % 3 == 0 and n // 2 == 30)
    assert seen == [2 * cell, 2 * cell]
    assert on_table[0] == 96
    assert on_tape


def test_any_frame_may_be_tallied_and_a_null_place_is_a_place(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, 5, "a"), (1, 5, "a"), (None, None, "b"), (None, None, None), (2, 7, None)],
        "who INT, at BIGINT, key STRING",
    )
    checks = prepare(
        [Check(unique=("key",)), Check(not_null=("key",)), Check(unique=("at",))], frame
    )
    view = View(frame, F.col("who"), (F.col("at"),))
    flags = [flag for check in checks for flag in check.flags()]
    rows_ = frame.select(*view.place, F.lit(1).cast("bigint").alias("records"), *flags)
    cells = aggregate_with_checks(rows_, checks, {"records": F.sum("records")}).collect()
    assert sorted((row["worker"] or 0, row["records"]) for row in cells) == [(0, 2), (1, 2), (2, 1)]
    failing = {name: sum(row[name] or 0 for row in cells) for name in ("c0", "c1", "c2")}
    assert failing == {"c0": 4, "c1": 2, "c2": 4}
    actual = results(checks, view, failing)
    assert [len(item.findings) for item in actual] == [4, 2, 4]
    assert {item.check for item in actual[1].findings} == {"not_null_key"}
