"""The main commands over one small tape, in the session of the other tests."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from capstan.api.context import Context
from capstan.cli import main
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.jobs import handlers
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId

FIRST = datetime(2013, 3, 1, tzinfo=UTC)
DECLARED = """
streams:
  bids:
    source: {format: parquet, path: "SOURCE", options: {maxFilesPerTrigger: 1}}
    workers: {by: column, column: house, labels: [north, south]}
    time: {domain: event, column: at, every: 1 hour}
transforms:
  by_hour:
    sql: |
      SELECT _worker, _time.event AS hour, count(*) AS bids, sum(price) AS total
      FROM records GROUP BY _worker, _time.event
    time: hour
    worker: _worker
"""
REPLAY_KEYS = {
    "run", "stream", "cut", "workers", "peers", "records", "since", "until", "frontier",
    "complete", "target", "target_version", "audit", "published", "unchanged",
}  # fmt: skip
UNTIL = "2013-03-01T03:00"


def feed(spark, source, start, hours):
    """A file of two bids per house and hour, at 10 and 40 minutes past."""
    rows = [
        (f"{house}", FIRST + timedelta(hours=hour, minutes=minute), hour * 100 + minute)
        for hour in range(start, start + hours)
        for house in ("north", "south")
        for minute in (10, 40)
    ]
    frame = spark.createDataFrame(rows, "house STRING, at TIMESTAMP, price BIGINT").coalesce(1)
    frame.write.mode("append").parquet(str(source))


@pytest.fixture(scope="module")
def captured(spark, tmp_path_factory):
    """A lake whose stream `bids` has four hours on tape, three of them complete."""
    root = tmp_path_factory.mktemp("cli") / "lake"
    root.mkdir()
    # Beside the lake: its copies read on in the same source, as the checkpoint knows it.
    source = root.parent / "source"
    declared = DECLARED.replace("SOURCE", str(source))
    (root / "streams.yaml").write_text(declared, encoding="utf-8")
    feed(spark, source, 0, 4)
    words = ["--lake", str(root), "--config", str(root / "streams.yaml")]
    assert main([*words, "--json", "capture", "bids"]) == 0
    return root


@pytest.fixture
def place(captured, tmp_path, monkeypatch):
    """A copy of that lake for one test, as the environment names it."""
    root = tmp_path / "lake"
    shutil.copytree(captured, root)
    monkeypatch.setenv("CAPSTAN_LAKE", str(root))
    monkeypatch.setenv("CAPSTAN_CONFIG", str(root / "streams.yaml"))
    return root


@pytest.fixture
def run(place, spark, capsys):
    """Run a command with `--json`; the exit code and the one object."""

    def run(*words):
        capsys.readouterr()
        code = main([*words, "--json"])
        out, _ = capsys.readouterr()
        assert out.count("\n") == 1
        # The session is not the command's own, so it is still there.
        assert spark.range(1).count() == 1
        return code, json.loads(out)

    return run


def replay(run, *options):
    code, actual = run("replay", "bids", "--into", "table", *options)
    assert code == 0, actual
    return actual


def test_verify_ends_with_1_where_a_recording_is_not_valid(run, spark, place, capsys):
    code, actual = run("verify", "bids", "--deep")
    assert (code, actual["valid"], actual["cut"]) == (0, True, 0)
    assert [item["label"] for item in actual["workers"]] == ["north", "south"]
    assert {item["records"] for item in actual["workers"]} == {8}
    code, actual = run("verify", "bids", "--workers", "south")
    assert [item["worker"] for item in actual["workers"]] == [1]
    path = str(place / "streams" / "bids" / "events")
    events = spark.read.format("delta").load(path)
    first = events.where("kind = 'messages' AND worker = 1").orderBy("time").limit(1)
    late = first.withColumn("commit", F.lit(1).cast("bigint")).withColumn(
        "seq", F.lit(actual["workers"][0]["events"]).cast("bigint")
    )
    late.write.format("delta").mode("append").save(path)
    code, actual = run("verify", "bids")
    assert (code, actual["valid"]) == (1, False)
    violation = actual["workers"][1]["violation"]
    assert (violation["rule"], violation["time"]) == ("message", "2013-03-01T00:00:00.000000Z")
    assert main(["verify", "bids"]) == 1
    assert "1 of 2 recordings are not valid" in capsys.readouterr().out
    code, error = run("replay", "bids", "--into", "table")
    assert (code, error["error"]) == (1, "CAP-VIOLATION")
    assert not (place / "tables").exists()


def test_a_replay_stands_is_altered_mended_and_taken_back(run, spark, place, capsys):
    actual = replay(run, "--workers", "north", "--until", UNTIL)
    assert set(actual) >= REPLAY_KEYS
    assert (actual["workers"], actual["records"], actual["unchanged"]) == (["north"], 6, False)
    assert (actual["complete"], actual["published"], actual["target"]) == (True, True, "table")
    audit = actual["audit"]
    assert (audit["kind"], audit["passed"], audit["differing"]) == ("copy", True, 0)
    again = replay(run, "--workers", "north", "--until", UNTIL)
    assert again == {**actual, "unchanged": True}
    assert main(["replay", "bids", "--into", "table", "--workers", "north", "--until", UNTIL]) == 0
    assert f"nothing to do: run {actual['run']} is still published" in capsys.readouterr().out

    code, checked = run("audit", actual["run"])
    assert (code, checked["passed"], checked["run"]) == (0, True, actual["run"])
    spark.sql(f"UPDATE delta.`{place}/tables/table` SET price = 7 WHERE price = 110")
    code, checked = run("audit", actual["run"])
    assert (code, checked["passed"], checked["differing"]) == (1, False, 1)
    (finding,) = checked["findings"]
    assert {key: finding[key] for key in ("worker", "time", "kind")} == {
        "worker": 0, "time": "2013-03-01T01:00:00.000000Z", "kind": "changed",
    }  # fmt: skip
    assert (finding["expected"]["price"], finding["actual"]["price"]) == (110, 7)
    assert main(["audit", actual["run"]]) == 1
    assert "price=110" in capsys.readouterr().out
    version = str(actual["target_version"])
    assert run("audit", actual["run"], "--version", version)[0] == 0

    requested = (
        "plan",
        "bids",
        "--into",
        "table",
        "--workers",
        "north",
        "--until",
        UNTIL,
        "--diff",
    )
    code, plan = run(*requested)
    diff = plan["diff"]
    assert (code, plan["stands"], plan["complete"]) == (0, actual["run"], True)
    assert (diff["added"], diff["removed"], diff["changed"], diff["differing"]) == (0, 0, 1, 1)
    [row] = diff["sample"]
    assert (row["kind"], row["worker"], row["before"]["price"]) == ("changed", 0, 7)
    assert main([*requested]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("rows changed", "1 of 3 change", "price=110", "mode"))
    # The same from the submitted job.
    where = Context(place, config=place / "streams.yaml")
    request = {"stream": "bids", "into": "table", "workers": ["north"], "until": UNTIL}
    value = json.loads(json.dumps(handlers.plan(request, where).value, default=str))
    assert {**value, "diff": None} == {**plan, "diff": None}
    assert {**value["diff"], "sample": None} == {**diff, "sample": None}
    assert len(value["diff"]["sample"]) == 1
    mended = replay(run, "--workers", "north", "--until", UNTIL)
    assert (mended["unchanged"], mended["generation"]) == (False, 2)
    assert run("audit", mended["run"])[0] == 0
    code, back = run("rollback", mended["run"])
    assert (code, back["rolled_back"], back["unchanged"]) == (0, True, False)
    assert run("rollback", mended["run"])[1] == {**back, "unchanged": True}
    code, error = run("audit", mended["run"])
    assert (code, error["error"]) == (2, "CAP-NOT-PUBLISHED")
    code, listed = run("runs", "--target", "table")
    states = {row["run"]: row["state"] for row in listed["runs"]}
    assert states == {actual["run"]: "published", mended["run"]: "rolled back"}
    assert run("runs", "--limit", "1")[1]["total"] == 2

    reported = handlers.rollback({"run": actual["run"]}, where).value
    names = ("stream", "target", "workers", "until", "unchanged")
    assert {name: reported[name] for name in names} == {
        "stream": "bids", "target": "table", "workers": ["north"],
        "until": "2013-03-01T03:00:00.000000Z", "unchanged": False,
    }  # fmt: skip
    assert reported["target_version"] > back["target_version"]
    assert spark.read.format("delta").load(str(place / "tables" / "table")).count() == 0
    again = handlers.rollback({"run": actual["run"]}, where).value
    assert again == {**reported, "unchanged": True}


@pytest.mark.nightly
def test_a_run_is_held_and_published(run):
    held = replay(run, "--hold")
    assert (held["published"], held["target_version"]) == (False, None)
    assert held["audit"]["passed"] is True
    assert run("runs")[1]["runs"][0]["state"] == "audited"
    code, checked = run("audit", held["run"])
    assert (code, checked["passed"]) == (0, True)
    code, actual = run("publish", held["run"])
    assert (code, actual["published"], actual["unchanged"]) == (0, True, False)
    assert run("publish", held["run"])[1]["unchanged"] is True
    code, plan = run("plan", "bids", "--into", "table")
    assert plan["stands"] == held["run"]
    assert [item["run"] for item in plan["covered"]] == [held["run"]]


@pytest.mark.nightly
def test_a_transform_is_audited_as_one(run):
    actual = replay(run, "--transform", "by_hour")
    assert actual["audit"]["kind"] == "transform"
    code, checked = run("audit", actual["run"])
    assert (code, checked["kind"], checked["passed"]) == (0, "transform", True)


def test_incomplete_ranges_exit_3_until_closed(run):
    code, error = run("replay", "bids", "--into", "table", "--until", "2013-03-01T05:00")
    assert (code, error["error"]) == (3, "CAP-INCOMPLETE")
    assert error["frontier"] == ["2013-03-01T03:00:00.000000Z"]
    actual = replay(run, "--until", "2013-03-01T05:00", "--partial")
    assert (actual["complete"], actual["records"]) == (False, 12)
    code, closed = run("close", "bids")
    assert (code, closed) == (0, {"stream": "bids", "closed": 2, "cut": 1})
    assert run("close", "bids")[1]["closed"] == 0
    actual = replay(run, "--until", "2013-03-01T05:00")
    assert (actual["complete"], actual["records"]) == (True, 16)


def test_a_locked_range_exits_4_until_unlocked(run, spark, place):
    from capstan.storage.tape.tape import open_tape

    lake = Lake.at(place)
    everything = Region(Box.everything(open_tape(lake, "bids").time_type))
    other = RunId("f" * 32, 1, "table")
    claims.claim(lake, other, "bids", Scope(lake.table("table"), None, everything))
    code, error = run("replay", "bids", "--into", "table")
    assert (code, error["error"], error["holder"]) == (4, "CAP-HELD", other.name)
    row = run("runs")[1]["runs"][-1]
    assert (row["run"], row["state"], row["holds"]) == (other.name, "claimed", True)
    code, unlocked = run("unlock", other.name)
    assert (code, unlocked) == (0, {"run": other.name, "attempt": 1, "unlocked": True})
    assert replay(run)["published"] is True


def test_capture_goes_on_and_a_followed_replay_plays_what_is_new(run, spark, captured, capsys):
    first = replay(run, "--follow", "nightly")
    assert first["records"] == 12
    feed(spark, captured.parent / "source", 4, 2)
    code, actual = run("capture", "bids")
    assert (code, actual["batches"], actual["fed"]) == (0, 1, 8)
    assert actual["fed"] == actual["records"] + sum(actual["late"].values())
    plan = run("plan", "bids", "--into", "table", "--follow", "nightly")[1]
    assert (plan["since"], plan["records"]) == ("2013-03-01T03:00:00.000000Z", 8)
    second = replay(run, "--follow", "nightly")
    assert (second["records"], second["unchanged"]) == (8, False)
    assert replay(run, "--follow", "nightly")["unchanged"] is True
    assert main(["capture", "bids"]) == 0
    assert "nothing new; the tape is at commit 1" in capsys.readouterr().out


@pytest.fixture
def foreign(run, spark, place, tmp_path):
    """A table that somebody else made of the bids, without Capstan's columns."""
    rows = spark.read.format("delta").load(f"{place}/streams/bids/records").select("data.*")
    path = str(tmp_path / "foreign")
    rows.withColumn("extra", F.lit(1)).write.format("delta").save(path)
    options = ("audit", "bids", "--against", path, "--worker-column", "house")

    def audit(*more, time="at"):
        return run(*options, "--time-column", time, *more)

    return path, audit


def test_a_foreign_table_is_audited_by_its_own_columns(foreign):
    _, audit = foreign
    code, actual = audit()
    assert (code, actual["kind"], actual["passed"]) == (0, "copy", True)
    # Two houses, three complete hours of two bids each; the fourth hour is not judged.
    assert (actual["cells"], actual["records"]) == (6, 12)
    code, actual = audit("--workers", "south", "--since", "2013-03-01T01:00", "--until", UNTIL)
    assert (code, actual["cells"], actual["records"]) == (0, 2, 4)
    code, actual = audit("--columns", "price")
    assert (code, actual["kind"]) == (0, "shared-columns")


@pytest.mark.nightly
def test_a_foreign_table_fails_in_each_way(foreign, spark):
    path, audit = foreign
    early = "at < TIMESTAMP '2013-03-01T01:00:00Z'"
    changes = {
        "changed": f"UPDATE delta.`{path}` SET price = -1 WHERE house = 'north' AND price = 10",
        "missing": f"DELETE FROM delta.`{path}` WHERE house = 'north' AND price = 40 AND {early}",
        "extra": f"INSERT INTO delta.`{path}` SELECT * FROM delta.`{path}` WHERE price = 110",
    }
    for kind, sql in changes.items():
        spark.sql(sql)
        code, actual = audit()
        assert (code, actual["passed"]) == (1, False)
        assert kind in {finding["kind"] for finding in actual["findings"]}
        assert actual["totals"][kind] > 0
    assert audit("--version", "0")[0] == 0
    code, actual = audit("--since", "2013-03-01T02:00", "--until", UNTIL)
    assert (code, actual["passed"]) == (0, True)


def test_rows_of_nobody_are_extra(foreign, spark):
    path, audit = foreign
    spark.sql(
        f"INSERT INTO delta.`{path}` VALUES ('west', TIMESTAMP '2013-03-01T01:10:00Z', 5, 1), "
        "(NULL, TIMESTAMP '2013-03-01T01:10:00Z', 6, 1), ('north', NULL, 7, 1)"
    )
    code, actual = audit()
    assert (code, actual["totals"]["extra"], actual["totals"]["missing"]) == (1, 3, 0)
    extra = [(each["worker"], each["time"], each["actual"]["price"]) for each in actual["findings"]]
    assert sorted(extra, key=lambda each: each[2]) == [
        (None, "2013-03-01T01:00:00.000000Z", 5),
        (None, "2013-03-01T01:00:00.000000Z", 6),
        (0, None, 7),
    ]
    # Of chosen workers and times they are none.
    assert audit("--workers", "north,south", "--until", UNTIL)[0] == 0


def test_a_foreign_table_must_tell_the_times_apart(foreign, spark):
    path, audit = foreign
    table = spark.read.format("delta").load(path)
    daily = table.withColumn("day", F.to_date("at")).withColumn("number", F.unix_micros("at"))
    daily.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    code, error = audit(time="day")
    assert (code, error["error"]) == (2, "CAP-AUDIT-COLUMNS")
    assert "finer" in error["message"]
    code, error = audit(time="number")
    assert (code, error["error"]) == (2, "CAP-AUDIT-COLUMNS")
    code, error = audit("--columns", "price,nothing")
    assert (code, error["error"]) == (2, "CAP-AUDIT-COLUMNS")


def test_without_json_every_finished_step_is_a_line_on_stderr(run, capsys):
    capsys.readouterr()
    assert main(["replay", "bids", "--into", "table"]) == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert "replay bids: 12 records to replay" in lines
    assert "replay bids: published as version 1" in lines
    assert all(line.startswith("replay bids: ") for line in lines)
    assert "audit" in out
    assert "passed (copy, 6 cells)" in out


KEPT = """
streams:
  kept:
    source: {format: parquet, path: "SOURCE", options: {maxFilesPerTrigger: 1}}
    workers: {by: key, columns: [house, price], count: COUNT}
    time: {domain: event, column: at, every: 1 hour, lateness: 0 hours}
"""


def test_rescale_late_and_maintain_work_on_one_stream(run, spark, place, tmp_path):
    def declare(count):
        text = KEPT.replace("SOURCE", str(tmp_path / "source")).replace("COUNT", str(count))
        (place / "streams.yaml").write_text(text, encoding="utf-8")

    feed(spark, tmp_path / "source", 1, 3)
    declare(2)
    code, actual = run("capture", "kept")
    assert (code, actual["records"]) == (0, 12)
    feed(spark, tmp_path / "source", 0, 1)
    declare(3)
    code, actual = run("capture", "kept", "--rescale", "3")
    assert (code, actual["records"], actual["late"]) == (0, 0, {"late": 4})
    assert run("late", "kept")[1]["records"] == 4
    code, actual = run("late", "kept", "--put-back")
    assert (code, actual["records"], actual["left"]) == (0, 4, {})
    code, actual = run("late", "kept")
    assert (code, actual["records"], actual["put_back"]) == (0, 0, 4)
    code, actual = run("maintain", "kept")
    assert (code, actual["streams"], actual["busy"]) == (0, ["kept"], [])
    assert {"records", "events", "late", "feed"} <= {item["table"] for item in actual["tables"]}
    code, actual = run("verify", "kept", "--deep", "--source")
    assert (code, actual["valid"], actual["source"]["agrees"]) == (0, True, True)
    assert (actual["source"]["records"], actual["source"]["batches"]) == (16, 2)
    assert [item["closed"] for item in actual["workers"]] == [True, True, False, False, False]
