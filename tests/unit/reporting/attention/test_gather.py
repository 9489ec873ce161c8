"""The list of what needs a person: what is on it, in which order, and how much of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from capstan.cli import main
from capstan.core.config import ProjectConfig, Replay
from capstan.core.protocol import Rule
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.reporting.attention.gather import list_attention, read_attention
from capstan.reporting.attention.items import KINDS
from capstan.reporting.coverage_view import view_coverages
from capstan.reporting.metrics import lake_samples
from capstan.reporting.run_heads import read_heads
from capstan.reporting.run_view import list_runs
from capstan.reporting.stream_view import view_streams
from capstan.storage.lake import Lake
from capstan.storage.tape.tape import open_tape
from tests.support import recorded_tapes
from tests.support.jvmless_lake import FIRST, Books, lay_tape
from tests.support.recorded_tapes import START, write

DAY = 86_400_000_000
NOTHING = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})


def days(since, until):
    return Region(Box((FIRST + since * DAY,), (FIRST + until * DAY,)))


def replays(*named, **more):
    actual = {
        name: Replay(name=name, stream="s", target=name, since=START, schedule="@daily", **more)
        for name in named
    }
    return ProjectConfig(Path("streams.yaml"), {}, {}, {}, actual)


@pytest.fixture
def lake(tmp_path):
    """A stream of which four days are complete."""
    lake = Lake.at(tmp_path / "lake")
    return lay(lake, "s")


def lay(lake, name):
    times = [(FIRST + n * DAY // 2,) for n in range(8)]
    lay_tape(lake, name, "ab", times, (FIRST + 4 * DAY,))
    write(lake.stream(name).late, recorded_tapes._LATE.empty_table())
    write(lake.stream(name).records, recorded_tapes._RECORDS.empty_table())
    return lake


def books(lake, target="daily", code=""):
    return Books(lake, "s", lake.table(target), code=code, _now=datetime.now(UTC))


def waiting(kept, run, region):
    kept.claimed(run, [0, 1], region)
    certificate = {"records": 4, "since": "2024-05-01", "until": "2024-05-03"}
    kept.stepped(run, "intent", {"request": {}, "certificate": certificate})
    kept.stepped(run, "audited", {})


def violated(lake, *workers):
    for worker in workers:
        facts = {
            "tape": open_tape(lake, "s").identity, "seq": 3, "rule": Rule.MESSAGE.value,
            "about": "a message",
        }  # fmt: skip
        books(lake).append(
            "findings",
            {
                "run": "", "attempt": 0, "stream": "s", "cut": 0, "target": "", "worker": worker,
                "audit": "verification", "kind": "violation", "total": 1,
                "actual": json.dumps(facts),
            },
        )  # fmt: skip


def listed(lake, config=NOTHING, **more):
    return read_attention(lake, config, **more)


def of(actual):
    return [(item.kind, item.name, item.text, item.command) for item in actual.items]


def test_a_lake_in_order_needs_nobody(lake):
    books(lake).published("daily-0000000a-1", [0, 1], days(0, 4))
    assert listed(lake, replays("daily")).items == ()
    assert listed(lake, replays("daily")).error is None
    with pytest.raises(InvalidRequestError, match="^CAP-LAKE: "):
        listed(Lake.at("/nowhere/at/all"))


def test_what_needs_a_person_is_told_with_its_action(lake):
    kept = books(lake, "t")
    waiting(kept, "t-0000000a-1", days(0, 2))
    kept.claimed("t-0000000b-1", [0], days(2, 3))
    kept.stepped("t-0000000b-1", "intent", {"request": {"stream": "s", "into": "t"}})
    kept.stepped(
        "t-0000000b-1", "failed", {"error": "CAP-AUDIT", "message": "2 cells", "hint": "look"}
    )
    kept.claimed("t-0000000c-1", [0], days(3, 4))
    kept.stepped("t-0000000c-1", "intent", {"request": {"replay": "daily"}})
    kept.released("t-0000000c-1")
    books(lake).published("daily-0000000a-1", [0, 1], days(1, 3))
    violated(lake, 1, 0)
    actual = listed(lake, replays("daily"))
    assert of(actual) == [
        (
            "waiting", "t-0000000a-1",
            "4 records from 2024-05-01 to before 2024-05-03 wait to be published into t",
            "capstan publish t-0000000a-1",
        ),
        ("failed", "t-0000000b-1", "CAP-AUDIT: 2 cells", "capstan replay s --into t"),
        (
            "dead", "t-0000000c-1", "cut off before it published into t",
            "capstan backfill daily",
        ),
        (
            "violation", "s", "worker a breaks message, and 1 more do", "capstan verify s",
        ),
        ("gap", "daily", "2 intervals not written from 2024-05-01", "capstan backfill daily"),
    ]  # fmt: skip
    runs = {view.run: view.at for view in list_runs(lake)}
    since = {item.name: item.since for item in actual.items}
    assert {run: since[run] for run in runs if run in since} == {
        run: at for run, at in runs.items() if run.startswith("t-")
    }
    assert [item.page for item in actual.items] == [
        "/runs/t-0000000a-1", "/runs/t-0000000b-1", "/runs/t-0000000c-1", "/streams/s",
        "/replays/daily",
    ]  # fmt: skip
    assert (actual.total, actual.more) == (5, "")
    assert [item.number for item in actual.items] == [1, 1, 1, 2, 2]


def test_intervals_are_told_by_what_is_wrong_with_them(lake):
    config = replays("daily")
    kept = books(lake, code="old")
    kept.published("daily-0000000a-1", [0, 1], days(0, 1))
    kept.code = ""
    kept.published("daily-0000000b-1", [0, 1], days(1, 2))
    kept.failed("daily-0000000c-1", None, days(2, 3))
    told = {item.kind: item for item in listed(lake, config).items}
    assert set(told) == {"stale", "gap", "failed"}
    assert told["stale"].text == "1 interval written by older code from 2024-05-01"
    assert told["stale"].command == "capstan backfill daily --stale"
    assert told["stale"].form.startswith("replay=daily&")
    assert told["gap"].text == ("2 intervals not written from 2024-05-03; the last run of 1 failed")
    assert told["gap"].first == "2024-05-03T00:00:00.000000Z"
    # There are two stretches, of which a person may choose one.
    assert told["gap"].form == ""


def test_a_replay_that_cannot_be_repeated_has_no_command(lake):
    kept = books(lake, code="old")
    kept.published("daily-0000000a-1", [0, 1], days(0, 4))
    [item] = listed(lake, replays("daily", mode="append")).items
    assert (item.kind, item.command, item.form) == ("stale", "", "")


def test_replays_without_intervals_have_no_gaps(lake):
    endless = Replay(name="endless", stream="s", target="endless")
    followed = Replay(name="f", stream="s", target="f", follow="f", schedule="@daily")
    config = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {"endless": endless, "f": followed})
    assert listed(lake, config).items == ()
    # A page has the coverage of all.
    views = view_coverages(lake, config, ["endless", "f"])
    assert [view.counts["gap"] for view in views] == [4, 4]
    streams = view_streams(lake, config, ["s"])
    assert list_attention(lake, config, streams, views, read_heads(lake)).items == ()


def test_what_cannot_be_read_is_told_once(lake):
    [log] = Path(lake.stream("s").events, "_delta_log").glob("*0.json")
    log.write_text("{torn", encoding="utf-8")
    [item] = listed(lake, replays("daily")).items
    assert (item.kind, item.subject, item.name) == ("unreadable", "stream", "s")
    assert item.text.startswith("CAP-TABLE: ")


def test_of_many_the_first_are_listed_and_all_are_counted(lake):
    kept = books(lake, "t")
    for number in range(6):
        kept.failed(f"t-0000000{number}-1", [0], days(number, number + 1))
    actual = listed(lake, replays("a", "b", "c"), most=2)
    assert [item.name for item in actual.items] == ["t-00000005-1", "t-00000004-1", "a", "b"]
    assert actual.kinds == {"failed": 6, "gap": 3}
    assert (actual.total, actual.more) == (9, "and 5 more: 4 failed, 1 gap")
    error = actual.error
    assert error is not None
    assert str(error).startswith(
        "CAP-ATTENTION: 9 things need a person: failed: run t-00000005-1: CAP-AUDIT"
    )
    assert "; and 6 more" in str(error)


def test_those_that_nobody_has_looked_at_are_said_to_be_so(lake, monkeypatch):
    monkeypatch.setattr("capstan.reporting.attention.unfinished.LOOKED_AT", 2)
    kept = books(lake, "t")
    for number in range(5):
        kept.failed(f"t-0000000{number}-1", [0], days(number, number + 1))
    actual = listed(lake)
    assert [item.name for item in actual.items] == ["t-00000004-1", "t-00000003-1"]
    unknown = "of the oldest 3 runs, nobody has looked whether later ones have published the same"
    assert actual.more == f"and 3 more: 3 failed; {unknown}"
    assert (actual.total, actual.older, actual.to_json()["older"]) == (5, 3, 3)
    # As long as there are any, nobody can say that all is well.
    kept.published("t-0000000a-1", [0], days(0, 5))
    actual = listed(lake)
    assert (actual.items, actual.total) == ((), 3)
    assert str(actual.error) == (
        "CAP-ATTENTION: 3 things need a person: the oldest 3 runs, nobody has looked whether later "
        "ones have published the same"
    )


def test_they_are_figures_by_kind_and_stream(lake):
    waiting(books(lake, "t"), "t-0000000a-1", days(0, 2))
    lay(lake, "quiet")
    actual = {
        sample.labels: sample.value
        for sample in lake_samples(lake, replays("daily"))
        if sample.metric == "attention"
    }
    assert {labels: value for labels, value in actual.items() if value} == {
        ("s", "waiting"): 1, ("s", "gap"): 1,
    }  # fmt: skip
    # What was mended is told as none.
    assert set(actual) == {(stream, kind) for stream in ("s", "quiet") for kind in KINDS}


def test_the_command_lists_them_and_tells_by_its_exit_code(lake, capsys, tmp_path):
    kept = books(lake, "t")
    waiting(kept, "t-0000000a-1", days(0, 2))
    words = ["status", "--lake", lake.root, "--config", str(tmp_path / "none.yaml")]
    Path(words[-1]).write_text("streams: {}\n", encoding="utf-8")
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert "waiting" in out
    assert "run t-0000000a-1" in out
    assert "capstan publish t-0000000a-1" in out
    assert err.startswith("CAP-ATTENTION: 1 thing needs a person: waiting: run t-0000000a-1: ")
    assert main([*words, "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["error"], value["total"], value["kinds"]) == (
        "CAP-ATTENTION", 1, {"waiting": 1},
    )  # fmt: skip
    [item] = value["attention"]
    assert {**item, "since": None} == {
        "kind": "waiting", "subject": "run", "name": "t-0000000a-1", "stream": "s",
        "replay": None, "target": lake.table("t"), "since": None, "first": None, "number": 1,
        "text": "4 records from 2024-05-01 to before 2024-05-03 wait to be published into t",
        "command": "capstan publish t-0000000a-1", "page": "/runs/t-0000000a-1", "form": None,
    }  # fmt: skip
    kept.stepped("t-0000000a-1", "rejected", {})
    assert main(words) == 0
    assert capsys.readouterr().out == "nothing needs attention\n"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "lake": lake.root, "attention": [], "kinds": {}, "total": 0, "older": 0,
    }  # fmt: skip
