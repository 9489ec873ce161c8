"""Commands over tapes, as far as they need no JVM; the tapes are made without one, too."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import deltalake
import pyarrow as pa
import pytest

from capstan.capture.dead_letters import FixResult
from capstan.capture.query.source_reconciliation import Reconciliation
from capstan.capture.repair import RepairSummary
from capstan.cli import main
from capstan.cli.commands.capture import _compared_lines
from capstan.cli.commands.late import _fix_outcome
from capstan.cli.context import Shell

FIRST = datetime(2013, 3, 1, tzinfo=UTC)
HOUR = 3_600_000_000
DECLARED = """
transforms:
  by_day:
    sql: SELECT _worker, date_trunc('DAY', _time.event) AS day, 1 AS one FROM records
    time: day
    worker: _worker
    grain: 1 day
  mixed:
    sql: SELECT count(*) AS n FROM records
pipelines:
  places: tests.support.pipeline_samples:places
  by_clock: tests.bench.workloads.nexmark_queries:q12
"""


def write(path, schema, rows, configuration):
    """A Delta table of these rows, one commit for each list of them."""
    deltalake.DeltaTable.create(
        str(path), schema, configuration=configuration, raise_if_key_not_exists=False
    )
    for commit in rows:
        table = pa.Table.from_pylist(commit, schema=schema)
        deltalake.write_deltalake(str(path), table, mode="append")


def make_tape(root, name, kind, arrow, at, every_us):
    """A tape of workers EWR and LGA: three hours or epochs each, the frontier at the third."""
    time = pa.struct([(kind, arrow)])
    update = pa.struct([("time", time), ("diff", pa.int64())])
    content = pa.struct([("h1", pa.int64()), ("h2", pa.int64())])
    events = pa.schema(
        [
            ("worker", pa.int32()), ("seq", pa.int64()), ("kind", pa.string()), ("time", time),
            ("updates", pa.list_(update)), ("batch", pa.int64()), ("commit", pa.int64()),
            ("records", pa.int64()), ("fingerprint", content),
        ]
    )  # fmt: skip
    minimum = {kind: at(None)}

    def statement(worker, seq, commit, before, after):
        updates = [{"time": before, "diff": -1}, {"time": after, "diff": 1}]
        return {
            "worker": worker, "seq": seq, "kind": "progress", "updates": updates,
            "batch": commit, "commit": commit,
        }  # fmt: skip

    def messages(worker, seq, commit, count):
        return {
            "worker": worker, "seq": seq, "kind": "messages", "time": {kind: at(commit)},
            "batch": commit, "commit": commit, "records": count, "fingerprint": {"h1": 5, "h2": -1},
        }  # fmt: skip

    commits = []
    for commit in range(2):
        before = {kind: at(commit)} if commit else minimum
        commits.append([])
        for worker in range(2):
            commits[-1].append(messages(worker, 2 * commit, commit, 3 + worker))
            step = statement(worker, 2 * commit + 1, commit, before, {kind: at(commit + 1)})
            commits[-1].append(step)
    kinds = {"event": "timestamp", "epoch": "bigint"}
    coordinate = {"name": kind, "kind": kinds[kind]}
    if kind == "event":
        coordinate["minimum"] = "0001-01-01T00:00:00Z"
    settings = {"fixed": {"time": {"every_us": every_us}}} if kind == "event" else {"fixed": {}}
    folder = root / "streams" / name
    write(
        folder / "events", events, commits,
        {
            "capstan.format": "1",
            "capstan.time": json.dumps({"coordinates": [coordinate]}),
            "capstan.settings": json.dumps(settings),
        },
    )  # fmt: skip
    workers = pa.schema(
        [("worker", pa.int32()), ("label", pa.string()), ("opened_commit", pa.int64())]
    )
    listed = [(0, "EWR"), (1, "LGA")]
    opened = [{"worker": number, "label": label, "opened_commit": 0} for number, label in listed]
    write(folder / "workers", workers, [opened], {})
    data = pa.struct([("origin", pa.string()), ("tags", pa.list_(pa.string()))])
    payload = [("worker", pa.int32()), ("batch", pa.int64()), ("time", time), ("pos", pa.int64())]
    records = [
        [
            {
                "worker": worker, "batch": batch, "time": {kind: at(batch)}, "pos": i,
                "data": {"origin": label, "tags": []},
            }
            for i in range(3 + worker)
        ]
        for batch in range(2)
        for worker, label in listed
    ]  # fmt: skip
    write(folder / "records", pa.schema([*payload, ("data", data)]), records, {})
    late = pa.schema([*payload, ("reason", pa.string()), ("data", data)])
    row = {"worker": 1, "batch": 1, "time": {kind: at(0)}, "pos": 0, "reason": "late"}
    lost = {"batch": 1, "pos": 1, "reason": "no-time"}
    write(folder / "late", late, [[row, lost]], {})


def hour(number):
    """The hour of that number; of None the first moment that a stream knows."""
    return datetime(1, 1, 1, tzinfo=UTC) if number is None else FIRST.replace(hour=number)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A lake with the streams `hours` (event times) and `steps` (epochs)."""
    root = tmp_path_factory.mktemp("cli") / "lake"
    make_tape(root, "hours", "event", pa.timestamp("us", "UTC"), hour, HOUR)
    make_tape(root, "steps", "epoch", pa.int64(), lambda n: n or 0, 1)
    (root / "streams.yaml").write_text(DECLARED, encoding="utf-8")
    return root


@pytest.fixture
def lake(place, monkeypatch):
    """That lake, as the environment names it."""
    monkeypatch.setenv("CAPSTAN_LAKE", str(place))
    monkeypatch.setenv("CAPSTAN_CONFIG", str(place / "streams.yaml"))
    return place


@pytest.fixture
def run(lake, capsys):
    """Run a command with `--json`; the exit code and the object."""

    def run(*words):
        code = main([*words, "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        assert out.count("\n") == 1
        return code, json.loads(out)

    return run


def test_streams_has_one_row_each(run, capsys):
    code, actual = run("streams")
    assert code == 0
    by_name = {row["stream"]: row for row in actual["streams"]}
    assert sorted(by_name) == ["hours", "steps"]
    expected = {"cut": 1, "workers": 2, "events": 8, "records": 14, "late": 2, "closed": False}
    for row in by_name.values():
        assert {key: row[key] for key in expected} == expected
    assert by_name["hours"]["frontier"] == ["2013-03-01T02:00:00.000000Z"]
    assert by_name["steps"]["frontier"] == [2]
    assert main(["streams"]) == 0
    assert "2013-03-01T02:00:00.000000Z" in capsys.readouterr().out


def test_a_tape_of_another_format_does_not_hide_the_others(place, tmp_path, monkeypatch, capsys):
    import shutil

    copy = tmp_path / "lake"
    shutil.copytree(place, copy)
    monkeypatch.setenv("CAPSTAN_LAKE", str(copy))
    log = copy / "streams" / "steps" / "events" / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('"capstan.format":"1"', '"capstan.format":"99"'))
    assert main(["streams", "--json"]) == 5
    listed = json.loads(capsys.readouterr().out)
    rows = {row["stream"]: row for row in listed["streams"]}
    assert listed["error"] == rows["steps"]["error"] == "CAP-FORMAT"
    assert listed["hint"]
    assert main(["streams"]) == 5
    assert capsys.readouterr().err.startswith("CAP-FORMAT: ")
    assert rows["hours"]["events"] == 8
    assert main(["show", "steps"]) == 5
    assert capsys.readouterr().err.startswith("CAP-FORMAT: ")


def test_show_says_what_is_on_tape(run, capsys):
    code, actual = run("show", "hours")
    assert code == 0
    assert (actual["stream"], actual["cut"], actual["newest"]) == ("hours", 1, 1)
    assert actual["late"] == {"late": 1, "no-time": 1}
    assert actual["verified"] is None
    assert actual["columns"] == ["origin string", "tags array<string>"]
    second = actual["workers"][1]
    frontier = "2013-03-01T02:00:00.000000Z"
    assert second == {
        "worker": 1, "label": "LGA", "events": 4, "records": 8, "holdings": [[frontier, 1]],
        "frontier": [frontier], "closed": False, "verified": None,
    }  # fmt: skip
    assert main(["show", "hours"]) == 0
    out = capsys.readouterr().out
    assert "LGA" in out
    assert f"{frontier} x1" in out


def test_show_goes_back_to_a_cut(run):
    code, actual = run("show", "steps", "--as-of", "0")
    assert code == 0
    assert [item["records"] for item in actual["workers"]] == [3, 4]
    assert (actual["frontier"], actual["late"], actual["newest"]) == ([1], {}, 1)


@pytest.mark.parametrize("command", [["show"], ["verify"], ["plan", "--into", "x"]])
@pytest.mark.parametrize("cut", ["-1", "2", "99999999999999999999"])
def test_a_cut_that_the_tape_does_not_have(command, cut, run):
    code, error = run(*command[:1], "hours", *command[1:], f"--as-of={cut}")
    assert (code, error["error"]) == (2, "CAP-CUT")


def test_plan_says_what_would_be_read(run, capsys):
    code, actual = run("plan", "hours", "--into", "x", "--workers", "LGA", "--until", "20130301T01")
    assert (code, actual["error"]) == (2, "CAP-TIME")
    until = "2013-03-01T01:00"
    code, actual = run("plan", "hours", "--into", "x", "--workers", "LGA", "--until", until)
    assert (code, actual["complete"]) == (0, True)
    assert (actual["workers"], actual["left_out"], actual["peers"]) == (["LGA"], ["EWR"], 1)
    assert (actual["records"], actual["times"], actual["messages"]) == (4, 1, 1)
    # A file per worker and batch, of which one can hold a row of it.
    assert (actual["files"], actual["files_all"]) == (1, 4)
    assert 0 < actual["bytes"] < 10_000
    assert actual["late"] == {"late": 1}
    assert actual["until"] == actual["asked_until"] == "2013-03-01T01:00:00.000000Z"
    assert actual["frontier"] == ["2013-03-01T02:00:00.000000Z"]
    assert (actual["covered"], actual["stands"]) == ([], None)
    assert main(["plan", "hours", "--into", "x", "--workers", "1", "--until", until]) == 0
    assert "1 of 4 files" in capsys.readouterr().out


def test_plan_of_a_range_that_is_not_complete_ends_with_3(run):
    code, actual = run("plan", "steps", "--into", "x", "--since", "1", "--until", "5")
    assert (code, actual["complete"], actual["until"], actual["asked_until"]) == (3, False, 2, 5)
    assert (actual["records"], actual["files"]) == (7, 2)
    code, actual = run("plan", "steps", "--into", "x", "--until", "5", "--partial")
    assert (code, actual["records"]) == (0, 14)
    code, actual = run("plan", "steps", "--into", "x")
    assert (code, actual["complete"], actual["late"]) == (0, True, {"late": 1, "no-time": 1})


@pytest.mark.parametrize(
    ("stream", "options", "code"),
    [
        ("hours", ["--workers", "JFK"], "CAP-WORKER"),
        ("hours", ["--workers", "EWR,2"], "CAP-WORKER"),
        ("hours", ["--workers", "EWR' OR '1'='1"], "CAP-WORKER"),
        ("hours", ["--since", "2013-03-02", "--until", "2013-03-01"], "CAP-RANGE"),
        ("hours", ["--since", "2013-03-01", "--until", "2013-03-01"], "CAP-RANGE"),
        ("hours", ["--until", "0001-01-01"], "CAP-RANGE"),
        ("hours", ["--since", "7"], "CAP-TIME"),
        ("hours", ["--since", "yesterday"], "CAP-TIME"),
        ("hours", ["--since", "2013-02-30"], "CAP-TIME"),
        ("hours", ["--since", "10000-01-01"], "CAP-TIME"),
        ("hours", ["--since", "[1, 2]"], "CAP-TIME"),
        ("hours", ["--since", "[1"], "CAP-TIME"),
        ("hours", ["--since", ""], "CAP-TIME"),
        ("steps", ["--since", "2013-03-01"], "CAP-TIME"),
        ("steps", ["--since", "1.5"], "CAP-TIME"),
        ("steps", ["--until", "9223372036854775808"], "CAP-TIME"),
        ("steps", ["--since=-9223372036854775809"], "CAP-TIME"),
        ("hours", ["--transform", "nothing"], "CAP-TRANSFORM"),
        ("hours", ["--transform", "os:system"], "CAP-TRANSFORM"),
        ("hours", ["--transform", "by_day", "--since", "2013-03-01T05:00"], "CAP-GRAIN"),
        ("hours", ["--transform", "mixed", "--workers", "EWR"], "CAP-WORKERS"),
        ("hours", ["--transform", "mixed", "--since", "2013-03-01"], "CAP-TIMELESS"),
        ("hours", ["--mode", "merge"], "CAP-KEYS"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "replay"])
def test_requests_that_cannot_be_meant(command, stream, options, code, run, lake):
    before = sorted(lake.rglob("*"))
    ended, error = run(command, stream, "--into", "x", *options)
    assert (ended, error["error"]) == (2, code)
    assert error["hint"]
    assert sorted(lake.rglob("*")) == before


def test_the_greatest_bigint_is_a_time(run):
    code, actual = run("plan", "steps", "--into", "x", "--until", str(2**63 - 1))
    assert (code, actual["asked_until"]) == (3, 2**63 - 1)


def test_verify_refuses_a_worker_that_is_not_there(run):
    code, error = run("verify", "hours", "--workers", "EWR,JFK")
    assert (code, error["error"]) == (2, "CAP-WORKER")
    assert error["worker"] == "JFK"


@pytest.mark.parametrize(
    ("options", "ended", "code", "about"),
    [
        (["--against", "nothing"], 2, "CAP-TABLE", "nothing"),
        (["--against", "{}/bare"], 2, "CAP-AUDIT-COLUMNS", "--worker-column"),
        (["--against", "{}/bare", "--worker-column", "who"], 2, "CAP-AUDIT-COLUMNS", "who"),
        (
            ["--against", "{}/bare", "--worker-column", "origin"],
            2, "CAP-AUDIT-COLUMNS", "--time-column",
        ),
        (["--against", "{}/bare", "--version", "7"], 2, "CAP-VERSION", "7"),
        (["--against", "{}/bare", "--workers", "JFK"], 2, "CAP-WORKER", "JFK"),
        (["--against", "{}/bare", "--until", "2014-01-01"], 3, "CAP-INCOMPLETE", "frontier"),
        (["--against", "relative/bare"], 2, "CAP-NAME", "relative/bare"),
    ],
)  # fmt: skip
def test_audits_that_cannot_be_meant(options, ended, code, about, run, tmp_path):
    write(tmp_path / "bare", pa.schema([("origin", pa.string()), ("n", pa.int64())]), [], {})
    actual, error = run("audit", "hours", *(word.format(tmp_path) for word in options))
    assert (actual, error["error"]) == (ended, code)
    assert about in error["message"] + error["hint"]


def test_plan_knows_pipelines_and_where_they_go(run, capsys):
    words = ("--pipeline", "places", "--since", "2013-03-01T01:00", "--until", "2013-03-01T02:00")
    code, actual = run("plan", "hours", *words, "--sink", "hours")
    # Two hours ahead are read as well, and can still receive records.
    assert (code, actual["complete"], actual["target"]) == (3, False, "place_hours")
    assert (actual["records"], actual["since"]) == (14, "2013-03-01T01:00:00.000000Z")
    assert actual["pipeline"] == {
        "name": "places",
        "sink": "hours",
        "reads": {"since": "2013-02-28T17:00:00.000000Z", "until": "2013-03-01T02:00:00.000000Z"},
        "resumed": None,
    }
    assert main(["plan", "hours", *words, "--sink", "hours", "--into", "x"]) == 3
    assert "places, sink hours" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "replay"])
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--pipeline", "by_clock", "--into", "x"), "CAP-DAG-SCHEMA", "current_timestamp"),
        (("--pipeline", "places", "--into", "x"), "CAP-PIPELINE", "hours, pairs, starts"),
        (("--pipeline", "places", "--sink", "pairs"), "CAP-USAGE", "--into TABLE"),
        (("--pipeline", "place", "--into", "x"), "CAP-PIPELINE", "did you mean 'places'"),
        (("--sink", "pairs", "--into", "x"), "CAP-PIPELINE", "a sink but no pipeline"),
    ],
)
def test_unplayable_pipelines_are_refused_without_a_jvm(run, command, words, code, said):
    ended, error = run(command, "hours", *words)
    assert (ended, error["error"]) == (2, code)
    assert said in error["message"]


def test_late_lists_what_is_not_on_tape(run):
    code, actual = run("late", "hours")
    assert code == 0
    assert (actual["stream"], actual["cut"], actual["records"], actual["put_back"]) == (
        "hours",
        1,
        2,
        0,
    )
    # The table is one of an earlier version, which has no causes.
    one = {"records": 1, "first_batch": 1, "last_batch": 1}
    one |= dict.fromkeys(("field", "error", "file"))
    own = "2013-03-01T00:00:00.000000Z"
    assert actual["late"] == [
        {**one, "reason": "late", "workers": ["LGA"], "first_time": own, "last_time": own},
        {**one, "reason": "no-time", "workers": [], "first_time": None, "last_time": None},
    ]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--put-back", "--drop"), "CAP-USAGE", "exclude each other"),
        (("--reason", "late"), "CAP-USAGE", "belong to --drop"),
        (("--put-back", "--fix", "raw AS a"), "CAP-USAGE", "exclude each other"),
        (("--fix", "raw AS a", "--because", "x"), "CAP-USAGE", "belongs to --drop"),
        (("--dry-run",), "CAP-USAGE", "belongs to --fix"),
        (("--fix", "raw AS a"), "CAP-REQUEST", "records with one reason"),
        (("--fix", "raw AS a, uuid() AS b", "--reason", "late"), "CAP-SELECT", "calls uuid"),
        (("--drop",), "CAP-REQUEST", "dropped for a reason"),
        (("--drop", "--because", " "), "CAP-REQUEST", "dropped for a reason"),
    ],
)
def test_a_drop_or_fix_that_says_too_little_or_too_much_is_refused(run, words, code, said):
    ended, error = run("late", "hours", *words)
    assert (ended, error["error"]) == (2, code)
    assert said in error["message"]


def test_a_drop_says_how_it_is_undone(place, tmp_path, monkeypatch, capsys):
    root = tmp_path / "lake"
    shutil.copytree(place, root)
    # Neither of them needs a session.
    monkeypatch.setattr(Shell, "spark", lambda *_: nullcontext())

    def said(*words):
        assert main(["late", "hours", *words, "--lake", str(root)]) == 0
        return capsys.readouterr().out

    dropped = said("--drop", "--because", "no use", "--reason", "late")
    assert "1 records dropped, in batch 2; `capstan late hours --undrop 2` undoes it" in dropped
    assert "nothing to drop" in said("--drop", "--because", "no use", "--reason", "late")
    assert "1 records opened again, in batch 3" in said("--undrop", "2")
    again = said("--undrop", "2")
    assert "what batch 2 has dropped is open again already, since batch 3" in again


@pytest.mark.parametrize(
    ("batch", "said"),
    [(4, "2 records repaired, in batch 4"), (None, "2 records would be repaired")],
)
def test_a_fix_says_what_it_repairs_and_what_stays(batch, said):
    cells = [{"worker": "a", "time": "t", "records": 1}]
    repair = RepairSummary(
        2, 3, cells, {"malformed": 1}, [{"record": "x", "becomes": "y"}],
        [{"record": "z", "reason": "malformed"}],
    )  # fmt: skip
    first, _, *lines = _fix_outcome(FixResult("s", batch is None, batch, 7, repair, {}))
    assert first == "x -> y"
    assert lines == [
        "and 2 more workers and times",
        f"s: {said}, at commit 7",
        "still wrong: 1 malformed",
        "  malformed: z",
    ]
    none = FixResult("s", False, None, 7, replace(repair, records=0, times=0, cells=[]), {})
    assert "s: nothing to repair, at commit 7" in _fix_outcome(none)
    assert none.to_json()["wrong"] == {"malformed": 1}


def test_what_a_source_lacks_and_has_too_much_add_up_apart():
    counts = {"in_source": 100, "on_tape": 91, "dead": 7, "repaired": 2, "missing": 5, "extra": 5}
    compared = Reconciliation("s", 1, 3, 100, False, 0, 0, 0, 2, (), **counts)
    line = "100 in the source = 91 on tape + 7 dead + 2 repaired + 5 missing - 5 too many"
    assert _compared_lines(compared)[1].strip() == line
    assert {name: compared.to_json()[name] for name in counts} == counts


def test_late_tells_causes_apart(place, tmp_path, capsys):
    root = tmp_path / "lake"
    shutil.copytree(place, root)
    table = deltalake.DeltaTable(str(root / "streams" / "hours" / "late"))
    [kept] = [row for row in table.to_pyarrow_table().to_pylist() if row["reason"] == "late"]
    causes = [("n", "does not parse into INT", "f"), ("n", "does not parse into INT", "g")]
    malformed = {**kept, "reason": "malformed", "worker": None, "batch": 0}
    rows = [
        {**malformed, "field": field, "error": error, "file": file}
        for field, error, file in (causes[0], *causes, (None, "is no JSON object", None))
    ]
    schema = table.to_pyarrow_dataset().schema
    for name in ("field", "error", "file"):
        schema = schema.append(pa.field(name, pa.string()))
    more = pa.Table.from_pylist(rows, schema=schema)
    deltalake.write_deltalake(table, more, mode="append", schema_mode="merge")
    words = ["late", "hours", "--lake", str(root)]
    assert main([*words, "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["late"]
    keys = ("reason", "field", "error", "file", "records")
    assert [tuple(group[key] for key in keys) for group in groups][:2] == [
        ("malformed", "n", "does not parse into INT", "f", 2),
        ("late", None, None, None, 1),
    ]
    assert len(groups) == 5
    assert main(words) == 0
    assert "n does not parse into INT" in capsys.readouterr().out


def test_late_says_what_its_reasons_mean(place, capsys):
    assert main(["late", "hours", "--lake", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "late: its time was complete when it came" in shown
    assert "no-time: its time is null or after the year 9999, or cannot be read: text" in shown
    assert "an offset beyond 18 hours" in shown
    # Of reasons that no record has nothing is said.
    assert "ahead:" not in shown


def test_records_that_were_put_back_are_late_no_more(place, tmp_path, capsys):
    root = tmp_path / "lake"
    shutil.copytree(place, root)
    rows = {"batch": [1, 1, 2], "origin": ["capture", "capture", "put-back"]}
    rows["detail"] = [None, None, json.dumps({"records": 1})]
    feed = pa.table(rows).append_column("checkpoint", pa.nulls(3, pa.string()))
    feed = feed.append_column("number", pa.nulls(3, pa.int64()))
    folder = str(root / "streams" / "hours")
    deltalake.write_deltalake(f"{folder}/feed", feed, partition_by=["origin"])
    # The batch that puts them back is not on tape yet: it was cut off.
    words = ["late", "hours", "--json", "--lake", str(root)]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 2
    event = {"worker": 0, "seq": 4, "kind": "progress", "updates": [], "batch": 2, "commit": 2}
    table = deltalake.DeltaTable(f"{folder}/events")
    deltalake.write_deltalake(
        table,
        pa.Table.from_pylist([event], schema=table.to_pyarrow_dataset().schema),
        mode="append",
    )
    for given in (words, ["show", *words[1:]]):
        assert main(given) == 0
        actual = json.loads(capsys.readouterr().out)
        late = actual["late"]
        assert late == {"no-time": 1} or [item["reason"] for item in late] == ["no-time"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["put_back"] == 1
    assert main([*words[:2], *words[3:]]) == 0
    assert "1 records not on tape, 1 put back" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("export", "hours", "kafka://nowhere/hours"), "CAP-TOPIC"),
        (("import", "copy", "kafka://host:9092/a b"), "CAP-TOPIC"),
        (("export", "hours", "somewhere"), "CAP-FORMAT-NAME"),
        (("verify", "hours", "--source", "--config", "/nowhere.yaml"), "CAP-DECLARE"),
    ],
)
def test_places_that_cannot_be_meant_are_refused_without_a_jvm(run, words, code):
    ended, actual = run(*words)
    assert (ended, actual["error"]) == (2, code)
