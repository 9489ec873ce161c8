"""What pages show of a lake, read from tables that no JVM has written."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs

import deltalake
import pyarrow as pa
import pytest

from capstan.core.config import ProjectConfig, Replay
from capstan.core.config.change_rules import OPTIONS
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError, SystemFailureError
from capstan.reporting.activity import TaskProgress
from capstan.reporting.commit_history import read_commit_times
from capstan.reporting.coverage_view import NoCoverage, view_coverage
from capstan.reporting.frontier_history import POINTS, read_progress
from capstan.reporting.html import environment
from capstan.reporting.lists.table_view import list_tables, view_written
from capstan.reporting.run_view import list_runs, view_run
from capstan.reporting.stream_view import (
    NoView,
    StreamHistory,
    least_held,
    stream_names,
    view_payload,
    view_stream,
    view_streams,
)
from capstan.storage.delta import arrow_scan, delta, table_cache
from capstan.storage.delta.delta import note_text
from capstan.storage.lake import Lake
from capstan.storage.ledger.region_json import region_text
from capstan.storage.ledger.tables import read_rows
from capstan.storage.tape import index
from capstan.storage.tape.tape import newest_cut, open_tape
from tests.support.jvmless_lake import Books, lay_tape
from tests.support.recorded_tapes import START, Recorded, write
from tests.support.sample_streams import little_stream

HOUR = 3_600_000_000
AT = datetime(2024, 6, 1, 12, tzinfo=UTC)
NOTHING = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})


def micros(moment):
    return int(moment.timestamp()) * 1_000_000


@pytest.fixture
def lake(tmp_path):
    return Lake.at(tmp_path)


def test_an_empty_lake_has_nothing_to_show(lake):
    assert stream_names(lake, NOTHING) == []
    assert list_runs(lake) == []
    assert view_streams(lake, NOTHING, []) == []


def test_a_stream_is_shown_as_its_tape_has_it(lake):
    recorded = Recorded("s", ["EWR", "JFK"], commits=5, slower={1: 2}, late={"late": 3, "ahead": 7})
    recorded.lay(lake)
    recorded.verified(lake, 2, AT)
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    assert view.progress.commits == (0, 1, 2, 3, 4)
    for worker in (0, 1):
        drawn = tuple(micros(recorded.frontier(worker, c)) for c in range(5))
        assert view.progress.frontiers[worker] == drawn
    tape = open_tape(lake, "s")
    assert view.workers == index.tape_state(tape, newest_cut(tape)).workers
    assert view.frontier == micros(recorded.frontier(1, 4))
    # The last record is one step before the faster worker's frontier.
    assert view.greatest == micros(recorded.frontier(0, 4)) - HOUR
    assert [view.lag(least_held(state)) for state in view.workers] == [0, 9 * HOUR]
    assert view.behind == 9 * HOUR
    assert list(view.late.items()) == [("ahead", 7), ("late", 3)]
    assert (view.verified_to, view.verified.at) == (2, AT)
    payload = view_payload(lake, "s")
    assert (payload.columns, payload.files, payload.bytes) == ((("n", "int64"),), 0, 0)


def test_only_new_commits_are_read(lake, monkeypatch):
    Recorded("s", ["a"], commits=1).lay(lake)
    first = view_stream(lake, NOTHING, "s")
    assert view_stream(lake, NOTHING, "s") is first
    Recorded("s", ["a"]).verified(lake, 0, AT)
    second = view_stream(lake, NOTHING, "s")
    assert isinstance(second, StreamHistory)
    assert second.verified_to is not None
    write(lake.stream("s").events, Recorded("s", ["a"])._events(0, 1))
    third = view_stream(lake, NOTHING, "s")
    assert isinstance(third, StreamHistory)
    assert third.cut.commit == 1
    assert third.events > second.events


@pytest.mark.parametrize("pages", [True, False], ids=["pages", "commands"])
def test_tables_that_stay_open_are_read_again_after_each_commit(lake, pages):
    if pages:
        table_cache.enable()
    try:
        Recorded("s", ["a"], commits=1).lay(lake)
        path = lake.stream("s").events
        first = delta.open_table(path)
        assert delta.open_table(path)._table is first._table
        kept = Books(lake, "s", lake.table("t"))
        for number in (1, 2):
            kept.stepped(f"t-0000000{number}-1", "failed", {"error": "x"})
            assert len(read_rows(lake, "runs")) == len(read_rows(lake, "runs")) == number
        write(path, Recorded("s", ["a"])._events(0, 1))
        second = delta.open_table(path)
        assert (first.version(), second.version()) == (1, 2)
        Path(lake.root, "streams").rename(Path(lake.root, "gone"))
        with pytest.raises(SystemFailureError) as refused:
            delta.open_table(path)
        assert refused.value.code == "CAP-TABLE"
    finally:
        table_cache.disable()


def test_a_stream_of_the_same_name_made_anew_is_another_one(tmp_path):
    actual = []
    for commits in (2, 2):
        lake = Lake.at(tmp_path)
        Recorded("s", ["a"], commits=commits, pairs=3 + len(actual)).lay(lake)
        actual.append(view_stream(lake, NOTHING, "s"))
        (tmp_path / "streams").rename(tmp_path / f"gone-{len(actual)}")
    assert [view.events for view in actual] == [13, 17]


def test_long_tapes_read_five_columns_and_draw_bounded(lake, monkeypatch):
    recorded = Recorded("long", [f"w{n}" for n in range(5)], commits=4, pairs=25_000)
    recorded.lay(lake)
    tape, scans = open_tape(lake, "long"), []

    def iter_columns(path, columns, table, files):
        scans.append((path, len(columns), len(files)))
        yield from arrow_scan.iter_columns(path, columns, table, files)

    monkeypatch.setattr("capstan.storage.tape.index_sums.iter_columns", iter_columns)
    progress = read_progress(tape, newest_cut(tape))
    assert scans == [(tape.paths.events, 5, 4)]
    assert recorded.events == 1_000_005
    assert sum(state.events for state in progress.workers) == recorded.events
    assert least_held(progress.workers[0]) == micros(recorded.frontier(0, 3))


@pytest.mark.parametrize("commits", [1, POINTS - 1, POINTS, POINTS + 1])
def test_of_many_commits_a_bounded_number_is_drawn(lake, commits):
    recorded = Recorded("s", ["a"], commits=1, pairs=1)
    recorded.lay(lake)
    further = [recorded._events(0, commit) for commit in range(1, commits)]
    if further:
        write(lake.stream("s").events, pa.concat_tables(further))
    tape = open_tape(lake, "s")
    progress = read_progress(tape, newest_cut(tape), points=POINTS)
    assert len(progress.commits) == min(commits, POINTS)
    assert progress.commits[0] == 0
    assert progress.commits[-1] == commits - 1
    assert progress.newest[0].commit == commits - 1
    assert len(progress.newest) <= POINTS


def test_moments_of_commits_are_those_of_their_files(lake):
    Recorded("s", ["a", "b"], commits=3).lay(lake)
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    course = read_commit_times(lake, view)
    files = pa.table(deltalake.DeltaTable(lake.stream("s").events).get_add_actions(flatten=True))
    written = sorted(files["modification_time"].to_pylist())
    assert [at and round(at.timestamp() * 1000) for at in course.moments] == written
    assert course.greatest == tuple(
        micros(Recorded("s", ["a"]).frontier(0, commit)) - HOUR for commit in range(3)
    )


def test_commit_times_come_from_the_log(lake):
    recorded = Recorded("s", ["a"], commits=1)
    recorded.lay(lake)
    path = lake.stream("s").events
    for commit in (1, 2, 3):
        note = deltalake.CommitProperties(
            custom_metadata={"userMetadata": note_text({"commit": commit}, f"t{commit}")}
        )
        deltalake.write_deltalake(
            path, recorded._events(0, commit), mode="append", commit_properties=note
        )
    deltalake.DeltaTable(path).optimize.compact()
    view = view_stream(lake, NOTHING, "s")
    assert isinstance(view, StreamHistory)
    course = read_commit_times(lake, view)
    # The first commit was written by someone who leaves no note.
    assert course.moments[0] is None
    logged = [
        entry["timestamp"] for entry in deltalake.DeltaTable(path).history()
        if "userMetadata" in entry
    ]  # fmt: skip
    actual = [round(at.timestamp() * 1000) for at in course.moments[1:] if at]
    assert actual == sorted(logged)
    # Which records came by then is not to be told from one file of all.
    assert course.greatest == (None, None, None, view.greatest)


def test_a_worker_that_has_said_nothing_is_at_the_start(lake):
    lay_tape(lake, "s", ["a", "b"], [(5 * HOUR,)], (9 * HOUR,))
    write(
        lake.stream("s").workers,
        _table(lake.stream("s").workers, {"worker": 7, "label": "silent", "opened_commit": 0}),
    )
    tape = open_tape(lake, "s")
    workers = read_progress(tape, newest_cut(tape)).workers
    assert [least_held(state) for state in workers] == [
        9 * HOUR,
        9 * HOUR,
        tape.time_type.minimum[0],
    ]


def test_unchecked_tapes_are_shown_as_far_as_valid(lake):
    lay_tape(lake, "s", ["a"], [(5 * HOUR,)], (9 * HOUR,))
    events = lake.stream("s").events
    update = {"time": {"event": None}, "diff": 1}
    nothing = {"worker": 0, "seq": None, "commit": 0, "batch": 0}
    for row in (
        {**nothing, "worker": None, "updates": [{"time": {"event": AT}, "diff": 1}]},
        {**nothing, "worker": 99, "updates": [{"time": {"event": AT}, "diff": 1}]},
        {**nothing, "updates": [update, {"time": None, "diff": 1}, {"time": {"event": AT}}]},
        {**nothing, "updates": [None], "records": 5},
        {**nothing, "kind": "messages"},
    ):
        write(events, _table(events, row))
    tape = open_tape(lake, "s")
    (state,) = read_progress(tape, newest_cut(tape)).workers
    assert (least_held(state), state.events, state.records) == (9 * HOUR, 5, 6)
    assert index.tape_state(tape, newest_cut(tape)).workers == (state,)


def test_a_closed_worker_holds_nothing(lake):
    lay_tape(lake, "s", ["a"], [(5 * HOUR,)], None)
    tape = open_tape(lake, "s")
    progress = read_progress(tape, newest_cut(tape))
    assert progress.workers[0].closed
    assert progress.frontiers == {0: (None,)}


def test_a_tape_that_cannot_be_read_does_not_hide_the_others(lake):
    Recorded("good", ["a"]).lay(lake)
    Recorded("newer", ["a"]).lay(lake)
    log = Path(lake.stream("newer").events) / "_delta_log" / f"{0:020}.json"
    log.write_text(log.read_text().replace('"capstan.format":"1"', '"capstan.format":"99"'))
    stream = little_stream(Path("source"), name="declared", description="of nothing")
    declared = ProjectConfig(Path("streams.yaml"), {"declared": stream}, {}, {}, {})
    names = stream_names(lake, declared)
    assert names == ["declared", "good", "newer"]
    there, good, newer = view_streams(lake, declared, names)
    assert isinstance(there, NoView)
    assert (there.error, there.description) == (None, "of nothing")
    assert isinstance(good, StreamHistory)
    assert isinstance(newer, NoView)
    assert newer.error is not None
    assert newer.error.code == "CAP-FORMAT"


def test_a_file_that_is_gone_is_told_by_its_name(lake):
    Recorded("good", ["a"]).lay(lake)
    Recorded("bad", ["a"]).lay(lake)
    gone = next(Path(lake.stream("bad").events).glob("*.parquet"))
    gone.unlink()
    bad, good = view_streams(lake, NOTHING, ["bad", "good"])
    assert isinstance(good, StreamHistory)
    assert isinstance(bad, NoView)
    assert bad.error is not None
    assert bad.error.code == "CAP-DAMAGED"
    assert gone.name in bad.error.message


@pytest.mark.parametrize("folder", ["a lake", "läke#1"])
def test_a_lake_may_have_any_place(tmp_path, folder):
    lake = Lake.at(tmp_path / folder)
    Recorded("s", ["a"], late={"late": 2}).lay(lake)
    (view,) = view_streams(lake, NOTHING, ["s"])
    assert isinstance(view, StreamHistory)
    assert (view.workers[0].label, view.late) == ("a", {"late": 2})


def test_each_tape_has_what_was_found_sound_of_it_alone(lake):
    for name, commit in (("one", 1), ("two", 3)):
        Recorded(name, ["a"]).lay(lake)
        Recorded(name, ["a"]).verified(lake, commit, AT)
    Recorded("three", ["a"]).lay(lake)
    views = view_streams(lake, NOTHING, ["one", "two", "three"])
    actual = [view.verified_to for view in views if isinstance(view, StreamHistory)]
    assert actual == [1, 3, None]


@pytest.mark.parametrize("name", ["../x", "a'b", "x;y", "", "X", "a" * 65])
def test_what_names_no_stream_is_looked_up_nowhere(lake, name):
    with pytest.raises(InvalidRequestError) as refused:
        view_stream(lake, NOTHING, name)
    assert refused.value.code == "CAP-NAME"


# Runs


CERTIFICATE = {
    "stream": "s", "cut": 0, "workers": ["a"], "records": 5, "times": 2, "fingerprint": "f" * 32,
    "since": "2024-05-01T00:00:00.000000Z", "until": None, "frontier": [], "complete": True,
    "not_covered": {"workers": ["b"], "incomplete_from": None, "asked_until": None},
    "late": {"late": 2}, "transform": None, "mode": "replace", "target": "t", "target_version": 3,
    "attempt": 1, "audit": {"kind": "copy", "passed": True, "cells": 2, "differing": 0},
}  # fmt: skip


def books(lake):
    return Books(lake, "s", lake.table("t"))


def test_runs_are_shown_by_their_last_step(lake):
    kept = books(lake)
    request = {"request": {"into": "t"}, "certificate": CERTIFICATE}
    for number, steps in enumerate(
        [
            [("intent", request)],
            [("intent", request), ("audited", {"audit": CERTIFICATE["audit"]})],
            [("intent", request), ("done", CERTIFICATE)],
            [("intent", request), ("done", CERTIFICATE), ("rolled-back", {"target_version": 4})],
            [("failed", {"error": "CAP-AUDIT", "message": "no", "cells": 9, "differing": 2})],
        ]
    ):
        for step, detail in steps:
            kept.stepped(f"t-0000000{number}-1", step, detail)
    runs = list_runs(lake)
    assert [run.state for run in runs] == [
        "failed", "rolled back", "published", "audited", "stopped",
    ]  # fmt: skip
    failed, _, published, audited, stopped = runs
    assert failed.error["error"] == "CAP-AUDIT"
    assert (failed.audit["passed"], failed.audit["differing"]) == (False, 2)
    assert published.audit == audited.audit == CERTIFICATE["audit"]
    assert published.published
    assert not audited.published
    assert stopped.certificate.records == 5
    assert stopped.request == {"into": "t"}
    kept.claimed(stopped.run, [0], days(1, 3), lives=timedelta(days=36_500))
    assert list_runs(lake, run=stopped.run)[0].state == "begun"


def test_a_run_with_only_a_claim_is_viewed_and_no_other_one(lake):
    kept = books(lake)
    kept.claimed("t-00000000-1", [0], days(1, 3), lives=timedelta(days=36_500))
    kept.claimed("t-11111111-1", [1], days(1, 3), lives=timedelta(days=36_500))
    kept.claimed("t-22222222-1", [1], days(3, 4), lives=timedelta(hours=1))
    view = view_run(lake, "t-00000000-1")
    assert (view.state, view.activity, view.steps) == ("claimed", "running", ())
    assert view.claim.expires > datetime(2100, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidRequestError):
        view_run(lake, "t-22222222-1")


def test_steps_took_what_passed_since_the_claim_or_the_step_before(lake):
    kept, run = books(lake), "t-00000000-1"
    kept.claimed(run, [0], days(1, 3))
    kept.stepped(run, "intent", {})
    kept.claimed(run, [0], days(1, 3))  # A renewal.
    kept.claimed(run, [0], days(1, 3), attempt=2)
    kept.stepped(run, "intent", {}, attempt=2)
    kept.claimed("t-11111111-1", [0], days(1, 3), attempt=2)
    kept.stepped(run, "audited", {"audit": {}}, attempt=2)
    kept.stepped(run, "intent", {}, attempt=3)
    took = [(row.attempt, row.step, took) for row, took in view_run(lake, run).timed_steps]
    second = timedelta(seconds=1)
    assert took == [
        (1, "intent", second), (2, "intent", second), (2, "audited", 2 * second),
        (3, "intent", None),
    ]  # fmt: skip


def test_a_run_s_maker_is_that_of_its_newest_attempt(lake):
    kept, run, ada = books(lake), "t-00000000-1", {"made_by": {"user": "ada"}}
    kept.stepped(run, "intent", ada)
    assert view_run(lake, run).made_by.user == "ada"
    kept.stepped(run, "audited", {"audit": {}})
    assert view_run(lake, run).made_by.user == "ada"
    kept.stepped(run, "intent", {}, attempt=2)
    assert view_run(lake, run).made_by is None


@pytest.mark.parametrize("name", ["t-00000000-1", "../t-00000000-1", "'", "", "t-00000000-1' OR 1"])
def test_a_run_that_is_not_there(lake, name):
    books(lake).stepped("t-11111111-1", "failed", {"error": "x"})
    with pytest.raises(InvalidRequestError) as refused:
        view_run(lake, name)
    assert refused.value.code == "CAP-RUN"


# Coverage


DAY = 24 * HOUR


def days(first, last):
    """The region of days of May 2024, the last one excluded."""
    begin = micros(START)
    return Region(Box((begin + (first - 1) * DAY,), (begin + (last - 1) * DAY,)))


@pytest.fixture
def covered(lake):
    """May 2024: days 1 and 2 are written, 3 failed, 4 and 5 are not, from 6 it is not complete."""
    begin = micros(START)
    times = [(begin + n * HOUR,) for n in range(0, 24 * 6, 6)]
    lay_tape(lake, "little", ["a", "b"], times, (begin + 5 * DAY,))
    kept = Books(lake, "little", lake.table("t"))
    kept.published("t-00000001-1", [0, 1], days(1, 3))
    kept.failed("t-00000002-1", [0, 1], days(3, 4))
    return lake


def declared(**changes):
    replay = Replay(
        **{
            "name": "r", "stream": "little", "target": "t", "since": START,
            "until": START + timedelta(days=7), "schedule": "@daily", **changes,
        }
    )  # fmt: skip
    stream = little_stream(Path("source"))
    return ProjectConfig(Path("streams.yaml"), {"little": stream}, {}, {}, {"r": replay})


def test_the_calendar_has_a_state_for_each_day(covered):
    view = view_coverage(covered, declared(), "r")
    assert not isinstance(view, NoCoverage)
    actual = {cell.name: cell.state for cell in view.cells}
    assert list(actual.items()) == [
        ("2024-05-01", "covered"),
        ("2024-05-02", "covered"),
        ("2024-05-03", "failed"),
        ("2024-05-04", "gap"),
        ("2024-05-05", "gap"),
        ("2024-05-06", "incomplete"),
        ("2024-05-07", "incomplete"),
    ]
    assert (view.years, view.year, view.total) == ((2024,), 2024, 7)
    assert [(s.state, s.intervals) for s in view.stretches] == [
        ("covered", 2), ("failed", 1), ("gap", 2), ("incomplete", 2),
    ]  # fmt: skip
    gap = view.stretches[2]
    assert gap.workers == ("a", "b")
    assert view.request(gap.since, gap.until, gap.workers) == {
        "replay": "r",
        "stream": "little",
        "into": "t",
        "workers": ["a", "b"],
        "since": "2024-05-04",
        "until": "2024-05-06",
        "transform": None,
        "pipeline": None,
        "sink": None,
        "mode": "replace",
        "keys": [],
        "sequence_by": [],
        **dict.fromkeys(OPTIONS),
        "history": False,
        "approve": False,
    }


def test_of_a_replay_that_appends_nothing_is_offered_that_stands(covered):
    """Day 4 lacks worker b alone, and days 1 and 2 were written by other code."""
    kept = Books(covered, "little", covered.table("t"), _claims=5, _version=5)
    kept.published("t-00000003-1", [0], days(4, 5))
    part = Region(Box((days(5, 6).box.since[0],), (days(5, 6).box.since[0] + HOUR,)))
    kept.published("t-00000004-1", [0, 1], part)
    for mode in ("replace", "append"):
        view = view_coverage(covered, declared(mode=mode), "r")
        offered = {stretch.since[:10]: stretch.fillable for stretch in view.stretches}
        cells = {cell.name: cell.fillable for cell in view.cells}
        replaces = mode == "replace"
        assert (offered["2024-05-03"], cells["2024-05-03"]) == (True, True)
        # Stretch and cell name the worker that is missing.
        assert (offered["2024-05-04"], cells["2024-05-04"]) == (True, True)
        assert (offered["2024-05-05"], cells["2024-05-05"]) == (replaces, replaces)
        drawn = environment().get_template("plots.html").module.coverage(view, "/fill")
        kept_links = drawn.count("/fill?")
        assert kept_links == sum(cells.values())

    # What follows comes by once more: nothing is played there before it.
    for mode in ("replace", "append"):
        view = view_coverage(covered, declared(mode=mode, follow="nightly", until=None), "r")
        offered = {stretch.state: stretch.fillable for stretch in view.stretches}
        assert offered["gap"] == any(c.fillable for c in view.cells) == (mode == "replace")

    stale = Books(covered, "little", covered.table("t"), "x", "f00", _claims=9, _version=9)
    stale.published("t-00000005-1", [0, 1], days(1, 3))
    for mode in ("replace", "append"):
        view = view_coverage(covered, declared(mode=mode), "r")
        first = view.stretches[0]
        assert (first.state, first.fillable) == ("stale", mode == "replace")
        assert view.cells[0].fillable == (mode == "replace")


FOREVER = timedelta(days=36_500)


def test_rows_that_are_there_are_stale_whatever_a_dead_run_has_left(covered):
    """An attempt was killed, another run has published, and the code has changed since."""
    stale = Books(covered, "little", covered.table("t"), "x", "f00", _claims=9, _version=9)
    stale.claimed("t-00000004-1", [0, 1], days(1, 3))
    stale.stepped("t-00000004-1", "intent", {})
    stale.published("t-00000005-1", [0, 1], days(1, 3))
    cells = view_coverage(covered, declared(), "r").cells
    assert [cell.state for cell in cells[:2]] == ["stale", "stale"]


def test_what_a_run_is_about_to_write_is_no_bare_gap(covered):
    """Days 3 to 5 lack both workers, and runs are to write some of them."""
    kept = Books(covered, "little", covered.table("t"), _claims=5, _version=5)

    def states(informed=list):
        view = view_coverage(covered, declared(), "r", informed=informed)
        assert view.total == sum(view.counts.values()) == 7
        assert [cell.state for cell in view.cells[5:]] == ["incomplete"] * 2
        return view, [cell.state for cell in view.cells[:5]]

    kept.claimed("t-00000003-1", [0, 1], days(3, 4), lives=FOREVER)
    kept.claimed("t-00000004-1", [0, 1], days(4, 5))
    kept.stepped("t-00000004-1", "intent", {})
    kept.claimed("t-00000005-1", [1], days(5, 6), lives=FOREVER)
    kept.stepped("t-00000005-1", "intent", {})
    kept.stepped("t-00000005-1", "audited", {"audit": {}})
    view, actual = states()
    assert actual == ["covered", "covered", "running", "dead", "waiting"]
    assert view.states == ["covered", "waiting", "incomplete", "running", "dead"]
    by_state = {cell.state: cell for cell in view.cells}
    assert [by_state[name].runs for name in ("running", "dead", "waiting", "covered")] == [
        ("t-00000003-1",), ("t-00000004-1",), ("t-00000005-1",), ("t-00000001-1",),
    ]  # fmt: skip
    # What is held cannot be filled by another run; what a dead one has left can.
    fillable = {cell.state for cell in view.cells if cell.fillable}
    assert fillable == {stretch.state for stretch in view.stretches if stretch.fillable} == {"dead"}
    assert by_state["dead"].workers == ("a", "b")
    # A part of it is held: whoever fills it would be refused.
    assert by_state["waiting"].workers == ("a", "b")
    drawn = environment().get_template("plots.html").module.coverage
    seen = {"t-00000003-1", "t-00000004-1"}
    links = re.findall(r'<a href="([^"?]*)', str(drawn(view, "/fill", "", seen)))
    assert links == ["/runs/t-00000003-1", "/fill"]
    assert re.findall(r'<a href="([^"?]*)', str(drawn(view, "", "", seen))) == [
        "/runs/t-00000003-1", "/runs/t-00000004-1",
    ]  # fmt: skip

    def told(views):
        return [replace(view, task=TaskProgress.OVER) for view in views]

    # No ledger has changed.
    assert states(told)[1] == ["covered", "covered", "dead", "dead", "waiting"]
    kept.stepped("t-00000005-1", "rejected", {"by": "ann"})
    kept.stepped("t-00000004-1", "failed", {"error": "CAP-FULL"})
    kept.released("t-00000003-1")
    assert states()[1] == ["covered", "covered", "failed", "failed", "gap"]


def test_of_several_runs_the_busiest_is_shown(covered):
    kept = Books(covered, "little", covered.table("t"), _claims=5, _version=5)
    kept.claimed("t-00000004-1", [0], days(4, 5))
    kept.stepped("t-00000004-1", "intent", {})
    kept.claimed("t-00000005-1", [1], days(4, 5), lives=FOREVER)
    view = view_coverage(covered, declared(), "r")
    assert [(view.cells[3].state, view.cells[3].runs)] == [("running", ("t-00000005-1",))]


def test_hours_of_a_day_become_its_worst(covered):
    view = view_coverage(covered, declared(schedule="@hourly"), "r")
    assert not isinstance(view, NoCoverage)
    assert view.total == 7 * 24
    assert {cell.name: cell.intervals for cell in view.cells}["2024-05-03"] == 24
    worst = {cell.name: cell.state for cell in view.cells}
    assert worst["2024-05-03"] == "failed"
    assert worst["2024-05-05"] == "gap"


def test_a_cell_leads_to_what_is_missing_alone(covered):
    kept = Books(covered, "little", covered.table("t"), _claims=5, _version=5)
    noon = Region(
        Box((micros(START) + 4 * DAY + 10 * HOUR,), (micros(START) + 4 * DAY + 12 * HOUR,))
    )
    # Of the fourth day worker 0 is written, of the fifth two hours of both.
    kept.published("t-00000004-1", [0], days(4, 5))
    kept.published("t-00000005-1", [0, 1], noon)
    view = view_coverage(covered, declared(schedule="@hourly"), "r")
    assert not isinstance(view, NoCoverage)
    cells = {cell.name: cell for cell in view.cells}
    fourth, fifth = cells["2024-05-04"], cells["2024-05-05"]
    assert fourth.workers == ("b",)
    assert parse_qs(view.fill_query(fourth))["workers"] == ["b"]
    assert (fourth.since[:16], fourth.until[:16]) == ("2024-05-04T00:00", "2024-05-05T00:00")
    assert fifth.workers == ("a", "b")
    assert (fifth.since[:16], fifth.until[:16]) == ("2024-05-05T00:00", "2024-05-05T10:00")


def test_the_year_that_is_asked_for_is_shown(covered):
    both = declared(since=START - timedelta(days=200), until=START + timedelta(days=7))
    view = view_coverage(covered, both, "r")
    assert not isinstance(view, NoCoverage)
    assert (view.years, view.year) == ((2023, 2024), 2024)
    other = view_coverage(covered, both, "r", year=2023)
    assert not isinstance(other, NoCoverage)
    assert {cell.name[:4] for cell in other.cells} == {"2023"}
    unknown = view_coverage(covered, both, "r", year=1999)
    assert not isinstance(unknown, NoCoverage)
    assert unknown.year == 2024


def test_what_cannot_be_told_says_why(lake):
    view = view_coverage(lake, declared(), "r")
    assert isinstance(view, NoCoverage)
    assert view.error.code == "CAP-STREAM"


def test_a_publish_shows_at_once(covered):
    view_coverage(covered, declared(), "r")
    kept = Books(covered, "little", covered.table("t"), _claims=5, _version=5)
    kept.published("t-00000003-1", [0, 1], days(3, 6))
    view = view_coverage(covered, declared(), "r")
    assert not isinstance(view, NoCoverage)
    assert view.counts["gap"] == view.counts["failed"] == 0


def test_a_retirement_shows_at_once(covered):
    """What has lost its records is offered to be filled no more."""
    before = view_coverage(covered, declared(), "r")
    assert not isinstance(before, NoCoverage)
    assert (before.counts["gap"], before.counts["retired"]) == (2, 0)
    row = {
        "stream": "little",
        "tape": str(delta.open_table(covered.stream("little").events).metadata().id),
        "at": datetime.now(UTC),
        "region": region_text(days(1, 5)),
        "cut": 0,
        "records": 2,
        "state": "begun",
    }
    write(covered.ledger("retired"), pa.table({name: [value] for name, value in row.items()}))
    view = view_coverage(covered, declared(), "r")
    assert not isinstance(view, NoCoverage)
    assert (view.counts["gap"], view.counts["retired"]) == (1, 2)
    assert {cell.name: cell.state for cell in view.cells}["2024-05-04"] == "retired"


def test_tables_show_their_runs_and_writers(covered):
    path = covered.table("t")
    kept = Books(covered, "little", path, "by_day", "f00", _claims=5, _version=5)
    kept.published("t-00000003-1", [1], days(2, 3))
    kept.published("t-00000004-1", None, days(4, 5))
    kept.published("t-00000005-1", None, days(5, 6))
    kept.rolled_back("t-00000005-1", None, days(5, 6))
    other = Books(covered, "gone", covered.table("x"), _claims=20)
    other.published("x-00000006-1", [0, 3], days(1, 2))
    runs = {run.run for run in list_runs(covered)}
    near, far = list_tables(covered, runs)
    assert (far.target, far.streams, near.target) == (covered.table("x"), ("gone",), path)
    assert (near.runs, far.runs) == (3, 1)
    [of_gone], _ = view_written(covered, runs, far.target, 1, 50)
    # Of a tape that is gone there are no labels.
    assert of_gone.workers == ("0", "3")
    written, total = view_written(covered, runs, path, 1, 50)
    assert (total, near.newest) == (3, written[0].at)
    assert [(item.covered.run, item.workers, item.over) for item in written] == [
        ("t-00000004-1", None, False), ("t-00000003-1", ("b",), False),
        ("t-00000001-1", ("a", "b"), True),
    ]  # fmt: skip
    assert [(item.covered.transform, item.covered.code) for item in written] == [
        ("by_day", "f00"), ("by_day", "f00"), ("", ""),
    ]  # fmt: skip
    # A page says the same of a run as the whole list does.
    assert [view_written(covered, runs, path, n, 2) for n in (1, 2, 3)] == [
        (written[:2], 3), (written[2:], 3), ([], 3),
    ]  # fmt: skip
    assert view_written(covered, {"t-00000001-1"}, path, 1, 50) == (written[2:], 1)
    assert view_written(covered, runs, "/elsewhere/y", 1, 50) == ([], 0)
    assert list_tables(covered, ()) == []
    # Nothing stands in a table that is gone.
    shutil.rmtree(covered.table("x"))
    assert list_tables(covered, runs) == [near]
    assert view_written(covered, runs, far.target, 1, 50) == ([], 0)


def _table(path, row):
    schema = deltalake.DeltaTable(path).to_pyarrow_dataset().schema
    return pa.Table.from_pylist([row], schema=schema)
