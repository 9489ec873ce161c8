"""Retirement: what goes, what stays, and that nobody is ever answered with fewer rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from capstan.capture.query.source_reconciliation import reconcile
from capstan.cli import main
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import IncompleteError, InvalidRequestError, RangeLockedError
from capstan.interop.kafka.export_topics import export_topics
from capstan.interop.kafka.topic_layout import Topics
from capstan.interop.transfer.export_files import export_recordings, form_of
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.interop.transfer.recording_format import Format
from capstan.jobs.finished_runs import RunAudit, RunAudits, audit_all
from capstan.maintenance.retire import plan_retire, retire
from capstan.maintenance.run import maintain
from capstan.replay.planning.request import Request
from capstan.replay.preview import preview
from capstan.replay.standalone_audit import audit_run
from capstan.storage.lake import delete_folder
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.retirements import read_retired, retired_boxes
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import read_history
from capstan.storage.tape.tape import newest_cut
from capstan.telemetry import instrumentation
from capstan.verify import verify
from tests.bench.counters import Watch, commits
from tests.support import lake_contents
from tests.support.contexts import DeclaredContext
from tests.support.sixteen_workers import NAME, ROWS, SIZES, Sixteen, make

DAYS = 5
BEFORE = "2020-01-03T12:00:00Z"
"""In the midst of the third day."""

GONE = ROWS * 2 + ROWS // 2


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sixteen:
    """Five days on tape, put together; a copy and a transform of all, published."""
    made = make(spark, tmp_path_factory.mktemp("retire"), DAYS)
    made.replay("copy")
    made.replay("hours", transform="hourly")
    made.replay("late_copy", since=BEFORE)
    maintain(spark, made.lake, [NAME], sizes=SIZES)
    assert verify(spark, made.lake, made.tape).valid
    return made


@pytest.fixture(scope="module")
def before(made: Sixteen) -> dict[str, list[str]]:
    """The tape before anything was retired."""
    return lake_contents.tape(made.lake, NAME)


@pytest.fixture(scope="module")
def retired(made: Sixteen, before: dict[str, list[str]]) -> Sixteen:
    """The same after its first two days and a half were retired."""
    planned = plan_retire(made.lake, NAME, BEFORE)
    known = commits(made.lake.root)
    assert (planned.records, planned.stands) == (GONE, False)
    assert planned.files.whole
    assert planned.files.partly
    assert 0 < planned.files.bytes < 16 * SIZES.file * 2
    done = retire(made.spark, made.lake, NAME, BEFORE)
    assert done == planned
    # The ledger is made; it says so, the records go, it says that they are gone.
    assert len(commits(made.lake.root) - known) == 4
    return made


def refused(work: object) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as error:
        work()  # type: ignore[operator]
    assert error.value.code == "CAP-RETIRED"
    assert "2020-01-03T12:00:00.000000Z" in error.value.message
    return error.value


def test_records_before_go_and_all_else_stays(
    retired: Sixteen, before: dict[str, list[str]]
) -> None:
    after = lake_contents.tape(retired.lake, NAME)
    assert {name: after[name] for name in ("events", "late", "workers")} == {
        name: before[name] for name in ("events", "late", "workers")
    }
    assert len(after["records"]) == len(before["records"]) - GONE
    assert set(after["records"]) < set(before["records"])
    assert not any('"2020-01-02' in row for row in after["records"])


def test_a_second_time_changes_nothing(retired: Sixteen) -> None:
    known = sorted(Path(retired.lake.root).rglob("*"))
    for again in (BEFORE, "2020-01-02"):
        assert retire(retired.spark, retired.lake, NAME, again).stands
    assert sorted(Path(retired.lake.root).rglob("*")) == known
    (row,) = read_retired(retired.lake, retired.tape)
    assert (row.records, row.done) == (GONE, True)


def test_other_readers_read_what_is_left(retired: Sixteen) -> None:
    assert {"ledger/retired", "ledger/runs", "tables/copy"} <= lake_contents.read_by_others(
        retired.lake
    )


def test_retired_tapes_verify_from_any_start(retired: Sixteen, spark: SparkSession) -> None:
    with Watch(spark) as watch:
        assert verify(spark, retired.lake, retired.tape).valid
    assert watch.jobs == 0
    delete_folder(retired.lake.ledger("verified"))
    actual = verify(spark, retired.lake, retired.tape, deep=True)
    assert actual.valid
    assert actual.to_json()["retired"] == ["2020-01-03T12:00:00.000000Z"]
    assert sum(verdict.records for verdict in actual.workers) == DAYS * ROWS


def test_damage_to_what_remains_is_still_found(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 3)
    retire(spark, made.lake, NAME, "2020-01-02")
    path = made.tape.paths.records
    assert verify(spark, made.lake, made.tape, deep=True).valid
    spark.sql(f"DELETE FROM delta.`{path}` WHERE batch = 1 AND data.id = 7")
    assert not verify(spark, made.lake, made.tape, deep=True).valid


def test_a_replay_that_needs_them_is_refused_by_name(retired: Sixteen) -> None:
    target = {"into": "again"}
    error = refused(lambda: retired.replay("again"))
    assert error.exit_code == 2
    refused(lambda: retired.replay("again", since="2020-01-03", workers=("3",)))
    refused(lambda: retired.replay("again", since="2020-01-03", transform="hourly"))
    refused(lambda: retired.replay("again", as_of=1))
    request = Request(NAME, partial=True, **target)
    refused(lambda: preview(retired.lake, retired.declared, request))
    assert not Path(retired.lake.table("again")).exists()
    # None of it was begun.
    assert not any(claim.stream == NAME for claim in claims.active(retired.lake))


def test_a_replay_of_what_remains_gives_what_it_gave(retired: Sixteen) -> None:
    retired.replay("again_late", since=BEFORE)
    again = lake_contents.rows(retired.lake.table("again_late"))
    assert again == lake_contents.rows(retired.lake.table("late_copy"))
    # What stands is no replay.
    assert retired.replay("copy").unchanged
    assert preview(retired.lake, retired.declared, Request(NAME, "copy", partial=True)).equivalent


def test_what_needs_whole_recordings_is_refused(retired: Sixteen, tmp_path: Path) -> None:
    spark, lake, tape = retired.spark, retired.lake, retired.tape
    form = form_of(tape, Format.JSONL)
    refused(lambda: export_recordings(spark, lake, tape, tmp_path / "out", form, workers=[3]))
    assert not (tmp_path / "out").exists()
    to = Topics("127.0.0.1:1", "nobody")
    cut = newest_cut(tape)
    refused(lambda: export_topics(spark, lake, tape, to, workers=[3], cut=cut))
    refused(lambda: recapture(spark, lake, RecaptureRequest(NAME, "other")))
    assert "other" not in lake.streams()


def test_a_source_is_held_against_the_batches_that_are_whole(retired: Sixteen) -> None:
    spark, tape = retired.spark, retired.tape
    boxes = retired_boxes(retired.lake, tape)
    actual = reconcile(spark, tape, retired.stream, deep=True, retired=boxes)
    assert (actual.agrees, actual.batches, actual.retired) == (True, 2, 3)
    assert not reconcile(spark, tape, retired.stream).agrees


def run_of(made: Sixteen, table: str) -> str:
    return str(made.replay(table, **({"transform": "hourly"} if table == "hours" else {}))
               .certificate.run)  # fmt: skip


def test_retired_copies_are_audited_by_the_index(retired: Sixteen) -> None:
    spark, lake, declared = retired.spark, retired.lake, retired.declared
    copy, hours = (read_history(lake, run_of(retired, table)) for table in ("copy", "hours"))
    assert audit_run(spark, lake, declared, copy).audit.passed
    refused(lambda: audit_run(spark, lake, declared, hours))
    # One that cannot be made stops no other, and fails no run.
    requested = RunAudits(tuple(RunAudit(history.last.run) for history in (copy, hours)))
    reported = audit_all(DeclaredContext(lake, declared, spark), requested)
    assert reported.refusal is None
    assert reported.value["not_audited"] == [hours.last.run]


def test_an_altered_copy_fails_its_audit_cell_by_cell(retired: Sixteen) -> None:
    spark, lake = retired.spark, retired.lake
    run = read_history(lake, run_of(retired, "copy"))
    path = lake.table("copy")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 3 AND ts < '2020-01-02'")
    spark.sql(f"UPDATE delta.`{path}` SET text = 'x' WHERE id = 500 AND ts < '2020-01-02'")
    spark.sql(f"UPDATE delta.`{path}` SET text = 'x' WHERE id = 9 AND ts > '2020-01-04'")
    audit = audit_run(spark, lake, retired.declared, run).audit
    assert not audit.passed
    # Of cells that were retired a wrong row counts, and cannot be told.
    assert audit.totals == {"missing": 1, "extra": 0, "changed": 1 + 2, "tape": 0}
    kinds = {(f.kind, "records" in (f.expected or {})) for f in audit.findings}
    assert {("missing", True), ("changed", True), ("changed", False)} <= kinds


def test_what_is_not_complete_is_not_retired(
    retired: Sixteen, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(IncompleteError) as error:
        plan_retire(retired.lake, NAME, "2020-02-01")
    assert (error.value.code, error.value.exit_code) == ("CAP-INCOMPLETE", 3)
    place = ["--lake", retired.lake.root]
    assert main(["retire", NAME, "--before", "2020-02-01", *place]) == 3
    assert main(["retire", NAME, "--before", "never", *place]) == 2
    assert main(["retire", "nobody", "--before", "2020-01-02", *place]) == 2
    assert main(["retire", NAME, "--before", "2020-01-04", "--plan", "--json", *place]) == 0
    assert f'"records": {ROWS // 2}' in capsys.readouterr().out


def held(made: Sixteen, run: RunId) -> None:
    everything = Region(Box.everything(made.tape.time_type))
    claims.claim(made.lake, run, NAME, Scope("elsewhere", None, everything))


@pytest.mark.nightly
def test_while_a_run_plays_nothing_is_retired(spark: SparkSession, tmp_path: Path) -> None:
    made = make(spark, tmp_path, 3)
    first, second = RunId("a" * 32, 1, "one"), RunId("b" * 32, 1, "two")
    held(made, first)
    records = lake_contents.rows(made.tape.paths.records)
    with pytest.raises(RangeLockedError) as error:
        retire(spark, made.lake, NAME, "2020-01-02")
    assert (error.value.exit_code, error.value.fields["holder"]) == (4, first.name)
    assert read_retired(made.lake, made.tape) == []
    claims.release(made.lake, first.name, 1)

    # One that claims after the look and before it is written down: it may have seen nothing.
    def claim(point: str, _: dict[str, object]) -> None:
        if point == "retire.begun":
            held(made, second)

    with instrumentation.subscribe(claim), pytest.raises(RangeLockedError):
        retire(spark, made.lake, NAME, "2020-01-02")
    assert lake_contents.rows(made.tape.paths.records) == records
    # From now on nobody is answered with fewer rows, and the records are still there.
    refused_now = pytest.raises(InvalidRequestError)
    with refused_now as error:
        made.replay("copy")
    assert error.value.code == "CAP-RETIRED"
    assert verify(spark, made.lake, made.tape, deep=True).valid
    busy = maintain(spark, made.lake, [NAME], sizes=SIZES)
    assert (busy.refusal.code, busy.refusal.exit_code) == ("CAP-HELD", 4)
    assert busy.tables[NAME][0].damaged == []
    claims.release(made.lake, second.name, 1)
    # The next maintenance finishes it.
    done = maintain(spark, made.lake, [NAME], sizes=SIZES)
    assert done.retired == {NAME: ROWS}
    assert len(lake_contents.rows(made.tape.paths.records)) == len(records) - ROWS
    assert verify(spark, made.lake, made.tape, deep=True).valid


def test_captures_and_maintenance_run_during_retirement(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = make(spark, tmp_path, 4)
    seen: list[str] = []

    def others(point: str, _: dict[str, object]) -> None:
        if point == "retire.written" and not seen:
            seen.append(point)
            made.lay(4)
            made.capture()
            # It takes the files that the retirement is about to take.
            maintain(replace(made).spark, made.lake, [NAME], sizes=SIZES)

    with instrumentation.subscribe(others):
        retire(spark, made.lake, NAME, "2020-01-02")
    assert seen
    assert len(lake_contents.rows(made.tape.paths.records)) == 4 * ROWS
    assert verify(spark, made.lake, made.tape, deep=True).valid
    assert read_retired(made.lake, made.tape)[0].done
