"""Replays: what comes out, what is refused, and what can be taken back. One tape for all tests."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from deltalake import DeltaTable

from capstan.audit import Audit
from capstan.capture.run import capture
from capstan.core.config import Mode, Target, Transform
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import CheckFailedError, IncompleteError, InvalidRequestError, RangeLockedError
from capstan.errors.translation import to_capstan_error
from capstan.replay.preview import preview
from capstan.replay.result import ReplayResult
from capstan.replay.run import unlock
from capstan.replay.target import staged_output, target_table
from capstan.storage.lake import Lake, exists
from capstan.storage.ledger import claims, coverage, runs, tables
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.tape.tape import open_tape
from capstan.telemetry.instrumentation import subscribe
from tests.support.replay_harness import Play
from tests.support.sample_streams import SUM_BY_DAY, declared, lay, little_stream, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


# Half an hour apart: five days, of which all but the last two hours are complete.
ROWS = rows(range(240))
DAY2, DAY3, DAY4, DAY5 = (f"2024-05-0{day}" for day in (2, 3, 4, 5))

TIMELESS = Transform(name="by_place", sql="SELECT place, count(*) AS n FROM records GROUP BY place")
OUTSIDE = Transform(
    name="outside",
    sql="SELECT _worker, _time.event + INTERVAL 10 DAYS AS day FROM records",
    time="day",
    worker="_worker",
)
CLOCKED = Transform(
    name="before_today",
    sql="SELECT _worker, _time.event AS day FROM records WHERE _time.event < 'today'",
    time="day",
    worker="_worker",
)
COARSE = Transform(
    name="coarse",
    sql="SELECT _worker, date_trunc('DAY', _time.event) AS day, count(*) AS n FROM records "
    "WHERE id > 0 GROUP BY ALL",
    time="day",
    worker="_worker",
)
FAILING = {
    name: Transform(
        name=name,
        sql=f"SELECT _worker, _time.event AS day, {what} FROM records",
        time="day",
        worker="_worker",
    )
    for name, what in (
        ("divides", "10 / (id - 60) AS x"),
        ("casts", "CAST(note AS INT) AS x"),
        ("raises", "CAST(raise_error('not so') AS INT) AS x"),
        ("twice", "id AS x, id AS X"),
        ("blank", "struct(id AS `a b`) AS x"),
        ("interval", "INTERVAL '1' DAY AS x"),
    )
}
WRONG = Transform(name="wrong", function="tests.support.sample_streams:counting", time="event")
TARGETS = {
    "declared": Target(name="declared", worker="place", time="at", columns=("id", "place", "at")),
    "narrow": Target(name="narrow", columns=("id", "amount")),
    "strange": Target(name="strange", columns=("id", "nosuch")),
}


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    folder = tmp_path_factory.mktemp("replay")
    transforms = SUM_BY_DAY, TIMELESS, OUTSIDE, CLOCKED, COARSE, WRONG, *FAILING.values()
    return Play.of(spark, folder, ROWS, transforms, TARGETS)


def run_of(outcome: ReplayResult) -> str:
    return str(outcome.certificate.run)


def between(first: int, after: int, places: str = "abc") -> list[int]:
    return [n for n in range(first, after) if "abc"[n % 3] in places]


@pytest.mark.parametrize("peers", [None, 1, 2, 3, 7])
def test_the_same_rows_on_any_number_of_replay_workers(play: Play, peers: int | None) -> None:
    into = f"peers_{peers or 'any'}"

    done = play(into, since=DAY2, until=DAY4, peers=peers)

    assert play.column(into) == between(48, 144)
    certificate = done.certificate.to_json()
    assert (certificate["records"], certificate["peers"]) == (96, peers or 3)
    dealt = certificate["replay_workers"]
    assert isinstance(dealt, list)
    assert sum(worker["records"] for worker in dealt) == 96
    assert [len(worker["sequences"]) for worker in dealt] == [
        len(range(seat, 3, peers or 3)) for seat in range(peers or 3)
    ]
    start = open_tape(play.lake, "little").time_type
    assert [worker["starts_holding"] for worker in dealt] == [
        [[start.render(start.minimum), len(worker["sequences"])]] if worker["sequences"] else []
        for worker in dealt
    ]
    json.dumps(certificate)


def test_twice_changes_nothing(play: Play) -> None:
    first = play("twice", workers=("a", "c"), since=DAY2, until=DAY4)
    version = play.version("twice")

    second = play("twice", workers=("a", "c"), since=DAY2, until=DAY4)

    assert (first.unchanged, second.unchanged) == (False, True)
    assert run_of(second) == run_of(first)
    assert play.version("twice") == version
    assert play.column("twice") == between(48, 144, "ac")
    assert first.certificate.not_covered.workers == ["b"]
    assert not exists(play.lake.staging(f"{run_of(first)}-1"))


def test_replace_leaves_the_rows_outside(play: Play) -> None:
    play("outside_rows", workers=("a",), since=DAY2, until=DAY4)
    play("outside_rows", workers=("a", "b"), since="2024-05-03", until="2024-05-05")

    assert play.column("outside_rows") == sorted(between(48, 192, "a") + between(96, 192, "b"))


def test_publish_roll_back_publish_again(play: Play) -> None:
    play("again", workers=("a",), since=DAY2, until="2024-05-03")
    first = play("again", workers=("a", "b"), since=DAY2, until=DAY4)
    play.rollback(run_of(first))
    assert play.column("again") == between(48, 96, "a")
    version = play.version("again")
    assert play.rollback(run_of(first)) == version == play.version("again")

    second = play("again", workers=("a", "b"), since=DAY2, until=DAY4)

    assert second.certificate.generation == 2
    assert play.column("again") == between(48, 144, "ab")


def test_a_clock_that_jumps_back_changes_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = tables.now()
    hours = itertools.count()
    monkeypatch.setattr(tables, "now", lambda: began - timedelta(hours=next(hours)))
    range_ = {"since": DAY2, "until": DAY4}

    first = play("back", **range_, hold=True)
    published = play.publish(run_of(first))
    history = runs.read_history(play.lake, run_of(published))
    assert [row.step for row in history.rows] == ["intent", "audited", "done"]
    assert play("back", **range_).unchanged
    play.rollback(run_of(published))
    assert runs.read_history(play.lake, run_of(published)).last.step == "rolled-back"
    again = play("back", **range_)

    assert (again.certificate.generation, play.column("back")) == (2, between(48, 144))
    assert {item.run for item in coverage.current(play.lake, play.lake.table("back"))} == {
        run_of(again)
    }


def test_an_unreported_publish_is_recognised(play: Play) -> None:
    def cut_off(point: str, _facts: object) -> None:
        if point == "replay.publish":
            raise RuntimeError("cut off")

    with subscribe(cut_off), pytest.raises(RuntimeError, match="cut off"):
        play("unsaid", since=DAY2, until=DAY4)
    (unsaid,) = runs.read_histories(play.lake, target=play.lake.table("unsaid"))
    assert not runs.read_history(play.lake, unsaid).published

    wider = play("unsaid", since=DAY2, until="2024-05-05")

    assert play.column("unsaid") == between(48, 192)
    assert runs.read_history(play.lake, unsaid).published
    standing = coverage.current(play.lake, play.lake.table("unsaid"))
    assert [item.run for item in standing] == [unsaid, run_of(wider)]


DAMAGES = {
    "altered": "UPDATE {table} SET amount = 1000 WHERE id = 50",
    "dropped": "DELETE FROM {table} WHERE id = 50",
    "doubled": "INSERT INTO {table} SELECT * FROM {table} WHERE id = 50",
    "of another worker": "UPDATE {table} SET _worker = 0 WHERE id = 50",
    "of another time": (
        "UPDATE {table} SET _time = named_struct('event', TIMESTAMP'2024-05-02 05:00:00Z') "
        "WHERE id = 50"
    ),
}


def test_a_damaged_target_is_mended_by_the_same_replay(play: Play) -> None:
    play("mended", since=DAY2, until=DAY4)
    sound = play.rows("mended").sort("id")
    for times, (name, damage) in enumerate(DAMAGES.items(), 2):
        play.sql(damage, "mended")
        assert not play.rows("mended").sort("id").equals(sound), name

        again = play("mended", since=DAY2, until=DAY4)

        assert (again.unchanged, again.certificate.generation) == (False, times), name
        assert play.rows("mended").sort("id").equals(sound), name


def test_rolling_back_what_a_later_run_wrote_over_is_refused(play: Play) -> None:
    first = play("later", since=DAY2, until=DAY4)
    second = play("later", since="2024-05-03", until="2024-05-05", direct=True)

    with pytest.raises(InvalidRequestError, match=f"CAP-LATER.*{run_of(second)}"):
        play.rollback(run_of(first))

    play.rollback(run_of(second))
    assert play.column("later") == between(48, 144)
    assert [covered.run for covered in coverage.current(play.lake, play.lake.table("later"))] == [
        run_of(first)
    ]
    # What the second wrote over stands again: nothing has to be done.
    assert play("later", since=DAY2, until=DAY4).unchanged
    play.rollback(run_of(first))
    assert play.column("later") == []


def test_what_others_changed_outside_survives_a_rollback(play: Play) -> None:
    done = play("others", workers=("a",), since=DAY2, until=DAY4)
    play.sql("INSERT INTO {table} SELECT 9, * EXCEPT (_worker) FROM {table} LIMIT 2", "others")

    play.rollback(run_of(done))

    assert play.rows("others")["_worker"].to_list() == [9, 9]


def test_rows_of_unknown_origin_are_not_replaced_unless_adopted(play: Play) -> None:
    play("foreign", workers=("a",), since=DAY2, until=DAY4)
    play.sql("INSERT INTO {table} SELECT 1, * EXCEPT (_worker) FROM {table} LIMIT 4", "foreign")

    with pytest.raises(InvalidRequestError, match=r"CAP-ADOPT.* 4 rows"):
        play("foreign", workers=("b",), since=DAY2, until=DAY4)
    done = play("foreign", workers=("b",), since=DAY2, until=DAY4, adopt=True)

    assert done.certificate.records == 32
    assert play.column("foreign") == between(48, 144, "ab")


@pytest.mark.parametrize(
    ("name", "acts", "said"),
    [
        (
            "renamed",
            ("ALTER TABLE {table} RENAME COLUMN amount TO total",),
            r"would empty them: total \(32 rows\)",
        ),
        (
            "dropped",
            ("ALTER TABLE {table} DROP COLUMN note",),
            "lacks columns that replays have written: note;",
        ),
        (
            "reviewed",
            (
                "ALTER TABLE {table} ADD COLUMN reviewed_by STRING",
                "UPDATE {table} SET reviewed_by = 'ann', amount = -1 WHERE id = 48",
            ),
            r"would empty them: reviewed_by \(1 rows\)",
        ),
    ],
)
def test_foreign_columns_are_emptied_only_on_request(
    play: Play, name: str, acts: Sequence[str], said: str
) -> None:
    mapped = "ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    play(name, since=DAY2, until=DAY4)
    for act in (mapped, *acts):
        play.sql(act, name)
    before = play.version(name)
    with pytest.raises(InvalidRequestError, match=f"CAP-ADOPT: .*{said}"):
        play(name, workers=("a",), since=DAY2, until=DAY4)
    assert play.version(name) == before
    play(name, workers=("a",), since=DAY2, until=DAY4, adopt=True)
    assert play.version(name) != before


def test_whole_rows_keep_what_others_have_added(play: Play) -> None:
    play("noted", since=DAY2, until=DAY4)
    play.sql("ALTER TABLE {table} ADD COLUMN noted_by STRING", "noted")
    play.sql("UPDATE {table} SET noted_by = 'ann' WHERE id = 48", "noted")
    assert play("noted", workers=("a",), since=DAY2, until=DAY4).unchanged
    rows = play.spark.read.format("delta").load(play.lake.table("noted"))
    assert rows.where("noted_by = 'ann'").count() == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("divides", "CAP-TRANSFORM: transform divides fails for a record .*DIVIDE_BY_ZERO"),
        ("casts", "CAP-TRANSFORM: transform casts fails for a record .*CAST_INVALID_INPUT"),
        ("raises", "CAP-TRANSFORM: transform raises fails for a record .*not so"),
        ("twice", "CAP-TRANSFORM: .*'X': Spark treats it as the same name as x"),
        ("blank", "CAP-TRANSFORM: .*'x.a b': a Delta table allows no name"),
        ("interval", "CAP-TYPE: column x has type interval"),
    ],
)
def test_a_transform_that_fails_is_named(play: Play, name: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as refused:
        play(f"of_{name}", since=DAY2, until=DAY4, transform=name)
    assert play.version(f"of_{name}") in (None, 0)
    histories = runs.read_histories(play.lake, target=play.lake.table(f"of_{name}"))
    for history in histories.values():
        assert history.last.error["error"] == refused.value.code


OWN = (
    "CREATE TABLE {{table}} (_worker INT, _time STRUCT<event: TIMESTAMP>, id BIGINT, place {}, "
    "at TIMESTAMP, amount INT, note STRING{}) USING delta"
)


def test_columns_that_delta_computes_are_not_of_others(play: Play) -> None:
    play.sql(OWN.format("STRING", ", day DATE GENERATED ALWAYS AS (CAST(at AS DATE))"), "computed")
    play("computed", since=DAY2, until=DAY4)
    play("computed", workers=("a",), since=DAY3, until=DAY4)
    assert not play.column("computed", "day").count(None)
    play.rollback(run_of(play("computed", workers=("b",), since=DAY2, until=DAY3)))
    assert play.column("computed") == between(48, 144)


def test_numbered_rows_roll_back_where_none_return(play: Play) -> None:
    play.sql(OWN.format("STRING", ", n BIGINT GENERATED ALWAYS AS IDENTITY"), "numbered")
    appended = run_of(play("numbered", since=DAY2, until=DAY4, workers=("a",), mode=Mode.APPEND))
    play.sql(
        "INSERT INTO {table} (_worker, _time, id, place, at, amount, note) "
        "SELECT _worker, _time, 240, place, at, amount, note FROM {table} LIMIT 1",
        "numbered",
    )
    with pytest.raises(
        InvalidRequestError, match=f"CAP-IDENTITY: run {appended} cannot be rolled back: .* n"
    ):
        play.rollback(appended)
    play.rollback(run_of(play("numbered", since=DAY4, until=DAY5)))
    assert play.column("numbered") == [*between(48, 144, "a"), 240]


def test_a_column_that_would_fill_texts_up_is_refused(play: Play) -> None:
    play.sql(OWN.format("CHAR(4)", ""), "padded")
    with pytest.raises(
        InvalidRequestError, match=r"CAP-TARGET-SCHEMA: .*place is char\(4\) in the table, and str"
    ):
        play("padded", since=DAY2, until=DAY4)


@pytest.mark.parametrize("name", ["folder", "file", "file/below"])
def test_a_place_where_other_files_are_is_no_target(play: Play, tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "part.parquet").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Exception, match="folder with other files|file|File|directory") as refused:
        play(str(tmp_path / name), since=DAY2, until=DAY4)
    actual = to_capstan_error(refused.value)
    assert actual.code == ("CAP-NAME" if name == "folder" else "CAP-NO-ACCESS")
    assert str(tmp_path / name.split("/", maxsplit=1)[0]) in actual.message


@pytest.mark.parametrize("mode", list(Mode))
def test_a_rule_of_the_target_is_named(play: Play, mode: Mode) -> None:
    name = f"ruled_{mode}"
    play(name, workers=("b",), since=DAY2, until=DAY4)
    play.sql("DELETE FROM {table}", name)
    play.sql("ALTER TABLE {table} ADD CONSTRAINT small CHECK (amount < 50)", name)
    before = play.version(name)
    with pytest.raises(CheckFailedError, match=r"CAP-CONSTRAINT: .* small \(amount < 50\)"):
        play(name, workers=("a",), since=DAY2, until=DAY4, mode=mode, keys=("id",))
    assert play.version(name) == before


def test_a_required_column_that_the_rows_lack_is_named(play: Play) -> None:
    play.sql(OWN.format("STRING", ", loaded_by STRING NOT NULL"), "required")
    with pytest.raises(CheckFailedError, match=r"CAP-CONSTRAINT: .* loaded_by, .* NOT NULL"):
        play("required", since=DAY2, until=DAY4)
    assert play.version("required") == 0


def test_only_complete_times(play: Play) -> None:
    with pytest.raises(IncompleteError, match="CAP-INCOMPLETE.*2024-05-05T21:00:00"):
        play("early", since="2024-05-05", until="2024-05-06")
    assert play.version("early") is None
    assert runs.read_histories(play.lake, target=play.lake.table("early")) == {}

    done = play("early", since="2024-05-05", until="2024-05-06", partial=True)

    assert play.column("early") == between(192, 234)
    assert done.certificate.complete is False
    left_out = done.certificate.not_covered
    assert left_out.incomplete_from == ["2024-05-05T21:00:00.000000Z"]


def test_a_declared_column_that_the_stream_does_not_have(play: Play) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-TARGET-COLUMNS.*nosuch") as caught:
        play("strange", since=DAY2, until=DAY4)
    assert "id, place, at, amount, note" in caught.value.hint
    assert play.version("strange") is None
    assert claims.active(play.lake, play.lake.table("strange")) == []


def test_held_then_published(play: Play) -> None:
    held = play("held", since=DAY2, until=DAY4, hold=True)
    assert held.certificate.published is False
    assert play.column("held") == []
    # It goes on holding its range.
    with pytest.raises(RangeLockedError, match=f"CAP-HELD.*{run_of(held)}"):
        play("held", workers=("a",), since=DAY2, until="2024-05-03")

    done = play.publish(run_of(held))

    assert done.certificate.target_version == play.version("held")
    assert play.column("held") == between(48, 144)
    assert play.publish(run_of(held)).unchanged


def test_unlock(play: Play) -> None:
    scope = Scope(play.lake.table("locked"), (0, 1), Region(Box((None,), (None,))))
    dead = RunId("f" * 32, 1, "locked")
    assert claims.claim(play.lake, dead, "little", scope) == 1
    with pytest.raises(RangeLockedError) as caught:
        play("locked", workers=("b",), since=DAY2, until=DAY4)
    assert caught.value.exit_code == 4
    assert caught.value.fields["holder"] == dead.name
    # Another worker is another matter.
    play("locked", workers=("c",), since=DAY2, until=DAY4)

    assert unlock(play.lake, dead.name) == 1

    play("locked", workers=("b",), since=DAY2, until=DAY4)
    assert play.column("locked") == between(48, 144, "bc")
    with pytest.raises(InvalidRequestError, match="CAP-RUN"):
        unlock(play.lake, "nosuch-1")


def test_append_and_its_rollback(play: Play) -> None:
    play("appended", workers=("a",), since=DAY2, until=DAY4, mode=Mode.APPEND)
    second = play("appended", workers=("b",), since=DAY2, until=DAY4, mode=Mode.APPEND)
    assert play.column("appended") == between(48, 144, "ab")
    assert play("appended", workers=("b",), since=DAY2, until=DAY4, mode=Mode.APPEND).unchanged
    with pytest.raises(InvalidRequestError, match="CAP-APPEND"):
        play("appended", workers=("a", "b"), since=DAY2, until=DAY4, mode=Mode.APPEND)
    assert play.column("appended") == between(48, 144, "ab")

    play.rollback(run_of(second))

    assert play.column("appended") == between(48, 144, "a")


def test_merge_and_its_rollback(play: Play) -> None:
    merging: dict[str, object] = {
        "transform": "sum_by_day",
        "mode": Mode.MERGE,
        "keys": ("_worker", "day"),
    }
    play("merged", since=DAY2, until="2024-05-03", **merging)
    play.sql("UPDATE {table} SET amount = -1", "merged")
    second = play("merged", since=DAY2, until=DAY4, **merging)
    merged = play.rows("merged")
    assert merged.height == 6
    assert merged["amount"].min() > 0  # type: ignore[operator]

    play.rollback(run_of(second))

    assert play.rows("merged")["amount"].to_list() == [-1, -1, -1]


def test_a_transform_by_whole_days(play: Play) -> None:
    done = play("by_day", transform="sum_by_day")

    assert done.certificate.until == "2024-05-05T00:00:00.000000Z"
    counted = Counter((n // 48, n % 3) for n in range(192))
    got = play.rows("by_day").select(pl.col("day").dt.day() - 1, "_worker", "rows").rows()
    assert {(day, worker): n for day, worker, n in got} == counted
    assert done.certificate.audit["kind"] == "transform"  # type: ignore[index]
    with pytest.raises(InvalidRequestError, match="CAP-GRAIN") as caught:
        play("by_day", transform="sum_by_day", since="2024-05-02T07:00:00")
    assert "2024-05-02T00:00:00.000000Z and 2024-05-03T00:00:00.000000Z" in caught.value.hint


@pytest.mark.parametrize(
    ("since", "until"),
    [
        (DAY2, f"{DAY2}T12:00:00Z"),
        (f"{DAY2}T12:00:00Z", DAY4),
        (DAY2, None),  # The frontier is within a day.
    ],
)
def test_a_part_of_a_day_never_stands_as_the_day(play: Play, since: str, until: str | None) -> None:
    with pytest.raises(
        InvalidRequestError, match="CAP-GRAIN: transform coarse puts records of"
    ) as caught:
        play("coarse", transform="coarse", since=since, until=until)
    assert "or declare its grain" in caught.value.hint
    assert play.version("coarse") is None


def test_whole_days_need_no_grain(play: Play) -> None:
    done = play("whole_days", transform="coarse", since=DAY2, until=DAY4)
    assert done.certificate.published is True
    assert {row["n"] for row in play.rows("whole_days").to_dicts()} == {16}


def test_a_transform_without_time_replaces_all_or_nothing(play: Play) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-TIMELESS"):
        play("by_place", transform="by_place", since=DAY2)
    with pytest.raises(InvalidRequestError, match="CAP-WORKERS"):
        play("by_place", transform="by_place", workers=("a",))
    done = play("by_place", transform="by_place")
    assert sorted(play.rows("by_place").rows()) == [("a", 78), ("b", 78), ("c", 78)]
    assert done.certificate.records == 234


def test_a_transform_that_reads_the_clock(play: Play) -> None:
    with pytest.raises(
        InvalidRequestError, match="CAP-TRANSFORM.*before_today takes the moment 'today'"
    ):
        play("clocked", transform="before_today")
    assert play.version("clocked") is None


def test_a_transform_that_writes_outside_its_range(play: Play) -> None:
    with pytest.raises(CheckFailedError, match="CAP-OUTSIDE"):
        play("outside", transform="outside", since=DAY2, until=DAY4)
    assert play.rows("outside").height == 0


def test_a_transform_that_wrote_a_wrong_row_is_not_published(play: Play) -> None:
    with pytest.raises(CheckFailedError, match="CAP-AUDIT"):
        play("wrong", transform="wrong", since=DAY2, until=DAY4)
    assert play.rows("wrong").height == 0
    history = next(iter(runs.read_histories(play.lake, target=play.lake.table("wrong")).values()))
    assert history.last.step is runs.Step.FAILED
    # The rows stay in staging, to be looked at.
    assert exists(play.lake.staging(f"{history.last.run}-1"))


def test_a_publish_without_an_audit_is_audited_by_whoever_finds_it(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions published first, with `--direct`, and audited then."""
    publish = staged_output.publish

    def publish_first(*args: Any) -> None:
        publish(*args[:-1], {"direct": True})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(staged_output, "publish", publish_first)
        patch.setattr(target_table, "audit", lambda *_: Audit("copy", True, 1, 0, (), 1, {}))
        for name, transform in (("found", None), ("wrongly", "wrong")):
            with pytest.raises(KeyboardInterrupt):
                play(name, transform=transform, since=DAY2, until=DAY4)
    assert play("found", since=DAY2, until=DAY4).unchanged
    with pytest.raises(CheckFailedError, match="CAP-AUDIT"):
        play("wrongly", transform="wrong", since=DAY2, until=DAY4)
    assert play.rows("wrongly").height == 0
    assert coverage.current(play.lake, play.lake.table("wrongly")) == []


@pytest.mark.parametrize("into", ["declared", "narrow"])
def test_a_declared_target_has_its_own_columns(play: Play, into: str) -> None:
    done = play(into, workers=("a", "b"), since=DAY2, until=DAY4)

    assert done.certificate.audit["kind"] == "shared-columns"  # type: ignore[index]
    expected = {"declared": ["id", "place", "at"], "narrow": ["_worker", "_time", "id", "amount"]}
    assert play.rows(into).columns == expected[into]
    assert play.column(into) == between(48, 144, "ab")
    play.sql("UPDATE {table} SET id = 999 WHERE id = 51", into)
    assert not play(into, workers=("a", "b"), since=DAY2, until=DAY4).unchanged
    assert play.column(into) == between(48, 144, "ab")
    play(into, workers=("c",), since=DAY2, until=DAY4)
    assert play.column(into) == between(48, 144)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"workers": ("x",)}, "CAP-WORKER"),
        ({"workers": ()}, "CAP-WORKERS"),
        ({"since": DAY4, "until": DAY2}, "CAP-RANGE"),
        ({"since": "soon"}, "CAP-TIME"),
        ({"since": "12"}, "CAP-TIME"),
        ({"as_of": 7}, "CAP-CUT"),
        ({"peers": 0}, "CAP-PEERS"),
        ({"transform": "nosuch"}, "CAP-TRANSFORM"),
        ({"mode": Mode.MERGE}, "CAP-KEYS"),
        ({"follow": "f", "until": DAY4}, "CAP-FOLLOW"),
    ],
)
def test_bad_requests_change_nothing(play: Play, request_: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        play("refused", **request_)
    assert caught.value.code == code
    assert caught.value.exit_code == 2
    assert play.version("refused") is None
    assert runs.read_histories(play.lake, target=play.lake.table("refused")) == {}


@pytest.mark.parametrize("into", ["../x", "a'b", "x; DROP TABLE y", "A", "", "/a/../b", "`"])
def test_bad_targets(play: Play, into: str) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-NAME"):
        play(into)


def test_a_target_that_does_not_fit(play: Play) -> None:
    play.spark.sql(
        f"CREATE TABLE delta.`{play.lake.table('misfit')}` "
        "(_worker INT, _time STRUCT<event: TIMESTAMP>, id STRING) USING delta"
    )
    with pytest.raises(InvalidRequestError, match="CAP-TARGET-SCHEMA.*column id"):
        play("misfit", since=DAY2, until=DAY4)
    assert play.rows("misfit").height == 0
    # A table that a transform has made, which keeps neither worker nor time.
    play("placed", transform="by_place")
    before = play.version("placed")
    with pytest.raises(
        InvalidRequestError, match="CAP-TARGET-SCHEMA.*column _(worker|time) is missing"
    ):
        play("placed", since=DAY2, until=DAY4)
    assert play.version("placed") == before


def test_ledgers_are_read_by_others(play: Play) -> None:
    play("read", since=DAY2, until=DAY4)
    for name in ("runs", "coverage", "claims", "verified"):
        assert pl.read_delta(play.lake.ledger(name)).height > 0


class TestFollow:
    @pytest.fixture
    def growing(
        self, spark: SparkSession, tmp_path: Path
    ) -> tuple[Play, Callable[[int, int], None]]:
        stream = little_stream(tmp_path / "source")
        lake = Lake.at(tmp_path / "lake")
        play = Play(spark, lake, declared(stream))

        def feed(first: int, after: int) -> None:
            lay(tmp_path / "source", f"{first:04}", rows(range(first, after)))
            capture(spark, lake, stream)

        return play, feed

    def test_each_time_once(self, growing: tuple[Play, Callable[[int, int], None]]) -> None:
        play, feed = growing
        feed(0, 60)
        first = play("followed", follow="daily")
        assert play.column("followed") == between(0, 54)
        version = play.version("followed")
        assert play("followed", follow="daily").unchanged
        assert play.version("followed") == version

        feed(60, 100)
        second = play("followed", follow="daily")

        assert (first.certificate.records, second.certificate.records) == (54, 40)
        assert second.certificate.since == first.certificate.until
        assert play.column("followed") == between(0, 94)
        with pytest.raises(InvalidRequestError, match="CAP-LATER"):
            play.rollback(run_of(first))
        play.rollback(run_of(second))
        assert play.column("followed") == between(0, 54)
        third = play("followed", follow="daily")
        assert third.certificate.generation == 3
        assert play.column("followed") == between(0, 94)
        with pytest.raises(InvalidRequestError, match="CAP-FOLLOW"):
            play("followed", follow="daily", workers=("a",))

    def test_what_others_have_changed_is_told_once(
        self, growing: tuple[Play, Callable[[int, int], None]]
    ) -> None:
        play, feed = growing
        feed(0, 60)
        play("changed", follow="daily")
        DeltaTable(play.lake.table("changed")).delete("id = 3")
        reported: list[object] = []

        def listen(point: str, facts: Mapping[str, object]) -> None:
            if point == "replay.changed":
                reported.append(facts["change"])

        with subscribe(listen):
            play("changed", follow="daily")
            [first] = reported
            feed(60, 100)
            play("changed", follow="daily")
            play("changed", follow="daily")
        assert str(first).startswith("version 2 (DELETE, ")
        # Told until a run has published after it; the plan and the gaps go on telling it.
        assert reported == [first, first]
        requested = play.request("changed", follow="daily")
        assert list(map(str, preview(play.lake, play.declarations, requested).changes)) == [first]

    @pytest.mark.nightly
    def test_by_whole_days(self, growing: tuple[Play, Callable[[int, int], None]]) -> None:
        play, feed = growing
        feed(0, 60)
        play("by_day", follow="sums", transform="sum_by_day")
        assert play.rows("by_day")["rows"].sum() == 48
        feed(60, 80)
        assert play("by_day", follow="sums", transform="sum_by_day").unchanged
        feed(80, 120)
        play("by_day", follow="sums", transform="sum_by_day")
        assert play.rows("by_day")["rows"].sum() == 96


def test_complete_ranges_are_equal_at_newer_cuts(spark: SparkSession, tmp_path: Path) -> None:
    stream = little_stream(tmp_path / "source")
    lake = Lake.at(tmp_path / "lake")
    play = Play(spark, lake, declared(stream))
    lay(tmp_path / "source", "0", rows(range(60)))
    capture(spark, lake, stream)
    first = play("cuts", since="2024-05-01", until=DAY2)
    lay(tmp_path / "source", "1", rows(range(60, 70)))
    capture(spark, lake, stream)

    again = play("cuts", since="2024-05-01", until=DAY2)
    new = play("new", since="2024-05-01", until=DAY2)
    old = play("old", since="2024-05-01", until=DAY2, as_of=0)

    assert (again.unchanged, again.certificate) == (True, first.certificate)
    assert (first.certificate.cut, new.certificate.cut) == (0, 1)
    fingerprints = {str(run.certificate.fingerprint) for run in (first, new, old)}
    assert len(fingerprints) == 1
    assert play.column("cuts") == play.column("new") == play.column("old") == between(0, 48)
