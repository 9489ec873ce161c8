"""Intervals of declared replays, from tapes and ledgers written without a JVM."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from capstan.backfill.interval_grid import Scheduled
from capstan.backfill.planner import BackfillMode, BackfillRequest, plan_replays
from capstan.backfill.run import prepare
from capstan.backfill.survey import Every, Interval, IntervalState, Survey, survey
from capstan.cli import main
from capstan.core.config import Mode, Order, ProjectConfig, Replay, Transform
from capstan.core.times import Antichain, Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.maintenance.retire import plan_retire
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger.region_json import region_text
from capstan.storage.tape.tape import open_tape
from tests.support.jvmless_lake import BY_DAY, EVENT, FIRST, Books, lay_tape
from tests.support.recorded_tapes import write

HOUR = 3_600_000_000
DAY = 24 * HOUR
MIXED = Transform(name="mixed", sql="SELECT count(*) AS n FROM records")
ANYONE = Transform(name="anyone", sql="SELECT _time.event AS hour FROM records", time="hour")
REPLAYS = (
    Replay(name="days", stream="s", target="days", transform="by_day"),
    Replay(name="copy", stream="s", target="copy", since=datetime(2024, 5, 1, tzinfo=UTC)),
    Replay(name="whole", stream="s", target="whole", transform="mixed"),
    Replay(name="added", stream="s", target="added", transform="mixed", mode=Mode.APPEND),
    Replay(name="merged", stream="s", target="merged", mode=Mode.MERGE, keys=("id",)),
    Replay(name="anyone", stream="s", target="anyone", transform="anyone"),
    Replay(name="weekly", stream="s", target="weekly", schedule="@weekly"),
    Replay(name="some", stream="s", target="copy", workers=("b",)),
    Replay(name="odd", stream="s", target="odd", transform="by_day", schedule="0 6 * * *"),
    Replay(name="quarters", stream="s", target="quarters", schedule="*/15 * * * *"),
    Replay(name="batches", stream="numbers", target="batches", since=0, until=10),
    Replay(name="asked", stream="s", target="copy", approve=True),
)


def intervals(lake: Lake, config: ProjectConfig, replay: str, **bounds: object) -> list[Interval]:
    """The intervals of a declared replay."""
    return list(survey(lake, config, replay, **bounds).intervals)  # type: ignore[arg-type]


def day(number: float) -> int:
    return FIRST + int(number * DAY)


def days(since: float | None, until: float | None) -> Region:
    low, high = (None if x is None else day(x) for x in (since, until))
    return Region(Box((low,), (high,)))


def declarations(*transforms: Transform) -> ProjectConfig:
    known = {item.name: item for item in (BY_DAY, MIXED, ANYONE, *transforms)}
    return ProjectConfig(Path("x.yaml"), {}, known, {}, {item.name: item for item in REPLAYS})


class Place:
    """A lake with stream `s`: three workers, four days, the frontier at noon of the last.

    Worker c was opened on the second day.
    """

    def __init__(self, root: Path, every: int | None = None) -> None:
        self.lake = Lake.at(root / "lake")
        hours = [(FIRST + n * HOUR,) for n in range(0, 88, 4)]
        lay_tape(self.lake, "s", "abc", hours, (day(3.5),), opened={"c": (day(1),)}, every=every)

    def books(self, target: str, transform: str = "", code: str = "") -> Books:
        return Books(self.lake, "s", self.lake.table(target), transform, code)

    def survey(self, replay: str, **given: object) -> Survey:
        return survey(self.lake, declarations(), replay, **given)  # type: ignore[arg-type]

    def states(self, replay: str, **given: object) -> list[str]:
        return [str(interval.state) for interval in self.survey(replay, **given).intervals]

    def plan_replays(self, replay: str, **given: object) -> list[Request]:
        requested = BackfillRequest(replay, **given)  # type: ignore[arg-type]
        return list(prepare(self.lake, declarations(), requested).replays)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def spans(found: list[Request]) -> list[tuple[str, str]]:
    return [(str(item.since)[5:13], str(item.until)[5:13]) for item in found]


def test_unreplayed_times_are_a_gap_up_to_the_frontier(place: Place) -> None:
    actual = intervals(place.lake, declarations(), "days")

    assert [item.state for item in actual] == [IntervalState.GAP] * 3 + [IntervalState.INCOMPLETE]
    assert actual[0] == Interval(
        "2024-05-01T00:00:00.000000Z",
        "2024-05-02T00:00:00.000000Z",
        IntervalState.GAP,
        missing=("a", "b"),
        workers=("a", "b"),  # Worker c was opened a day later.
    )
    assert actual[1].missing == ("a", "b", "c")
    assert actual[-1].until == "2024-05-05T00:00:00.000000Z"


def test_a_frontier_on_the_border_completes_the_interval(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "a", [(FIRST,)], (day(2),))
    actual = intervals(lake, declarations(), "days")
    assert [item.state for item in actual] == [IntervalState.GAP, IntervalState.GAP]


def test_a_closed_stream_ends_with_its_last_record(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "a", [(FIRST,), (day(1.5),)], None)
    actual = intervals(lake, declarations(), "days")
    assert [item.state for item in actual] == [IntervalState.GAP, IntervalState.GAP]


def test_an_empty_tape_has_no_intervals(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "a", [], EVENT.minimum)
    assert intervals(lake, declarations(), "days") == []
    assert intervals(lake, declarations(), "whole") == []
    assert intervals(lake, declarations(), "weekly", since="2024-05-01") == []
    given = {"since": "2024-05-01", "until": "2024-05-03"}
    actual = intervals(lake, declarations(), "days", **given)
    assert [item.state for item in actual] == [IntervalState.INCOMPLETE] * 2


def test_a_tape_without_workers_is_not_complete(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "", [], None)
    actual = intervals(lake, declarations(), "days", since="2024-05-01", until="2024-05-02")
    assert [item.state for item in actual] == [IntervalState.INCOMPLETE]


def test_published_intervals_are_covered_until_a_rollback(place: Place) -> None:
    books = place.books("copy")
    books.published("one", [0, 1, 2], days(0, 2))
    books.published("two", [0, 1], days(2, 3))
    actual = place.survey("copy").intervals
    assert [item.state for item in actual] == ["covered", "covered", "gap", "incomplete"]
    assert [item.runs for item in actual] == [("one",), ("one",), ("two",), ()]
    assert actual[2].missing == ("c",)
    assert actual[2].partly == ()
    assert place.states("some") == ["covered", "covered", "covered", "incomplete"]

    books.rolled_back("one", [0, 1, 2], days(0, 2))
    assert place.states("copy") == ["gap", "gap", "gap", "incomplete"]


def test_a_partly_covered_interval_is_a_gap(place: Place) -> None:
    place.books("copy").published("half", [0, 1, 2], days(0, 1.5))
    actual = place.survey("copy").intervals
    assert [item.state for item in actual] == ["covered", "gap", "gap", "incomplete"]
    assert (actual[1].missing, actual[1].partly) == (("a", "b", "c"), ("a", "b", "c"))
    halves = place.states("copy", every=timedelta(hours=12), until="2024-05-03")
    assert halves == ["covered", "covered", "covered", "gap"]


def test_other_code_is_stale_and_the_newest_run_wins(place: Place) -> None:
    code = BY_DAY.code_hash
    old = place.books("days", "by_day", "f00")
    old.published("old", [0, 1, 2], days(0, 3))
    assert place.states("days") == ["stale", "stale", "stale", "incomplete"]

    fresh = replace(old, code=code)
    fresh.published("new", [0, 1], days(1, 2))
    actual = place.survey("days").intervals
    assert [item.state for item in actual] == ["stale", "stale", "stale", "incomplete"]
    assert [item.stale for item in actual] == [("a", "b"), ("c",), ("a", "b", "c"), ()]
    assert actual[1].runs == ("old", "new")

    fresh.published("rest", [2], days(1, 2))
    assert place.states("days")[1] == "covered"
    older = replace(fresh, code="f00")
    older.published("back", [1], days(None, None))
    assert place.states("days") == ["stale", "stale", "stale", "incomplete"]


def test_intervals_with_deleted_records_cannot_be_filled(place: Place) -> None:
    place.books("copy").published("one", [0, 1, 2], days(0, 1))
    tape = open_tape(place.lake, "s")
    rows = {
        "stream": ["s", "s"],
        "tape": [str(delta.open_table(tape.paths.events).metadata().id), "another tape"],
        "at": [datetime.now(UTC)] * 2,
        "region": [region_text(days(None, 1.5)), region_text(days(None, 9))],
        "cut": [1, 1],
        "records": [2, 2],
        "state": ["begun", "begun"],
    }
    write(place.lake.ledger("retired"), pa.table(rows))
    assert place.states("copy") == ["covered", "retired", "gap", "incomplete"]
    assert place.states("days") == ["retired", "retired", "gap", "incomplete"]
    assert spans(place.plan_replays("copy")) == [("05-03T00", "05-04T00")]
    assert spans(place.plan_replays("copy", what=BackfillMode.ALL)) == [
        ("05-01T00", "05-02T00"), ("05-03T00", "05-04T00"),
    ]  # fmt: skip


def test_another_transform_s_rows_are_stale(place: Place) -> None:
    place.books("days", "other", BY_DAY.code_hash).published("other", [0, 1, 2], days(0, 3))
    assert place.states("days")[:3] == ["stale"] * 3


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("other", [{"stream": "elsewhere"}, {"transform": "by_day"}])
def test_rows_of_another_output_change_a_run_s_range(
    place: Place, other: dict[str, str], mode: str
) -> None:
    books = place.books("copy")
    books.published("own", [0, 1, 2], days(0, 3))
    foreign = replace(books, **other)  # type: ignore[arg-type]
    foreign.published("added", [0], days(0, 1), mode=mode)
    actual = place.survey("copy").intervals
    assert [item.state for item in actual][:3] == ["changed", "covered", "covered"]
    assert (actual[0].missing, actual[0].runs) == (("a",), ("own",))
    assert actual[0].changes[0].startswith("run added of stream ")
    # Without a run of its own there, rows of another stream are none of it.
    foreign.published("more", [0], days(3, 4), mode=mode)
    assert place.states("copy")[3] == "incomplete"
    replace(foreign, stream="s", transform="").published("again", [0], days(0, 1))
    assert place.states("copy")[:3] == ["covered"] * 3


@pytest.mark.parametrize(("mode", "state"), [("append", "changed"), ("merge", "changed")])
def test_appending_runs_leave_other_outputs(place: Place, mode: str, state: str) -> None:
    books = place.books("copy")
    replace(books, stream="elsewhere").published("theirs", [1], days(1, 2))
    late = replace(books, _version=1)
    late.published("own", [0, 1, 2], days(0, 3), mode=mode)
    actual = place.survey("copy").intervals
    assert [item.state for item in actual][:3] == ["covered", state, "covered"]
    assert actual[1].missing == ("b",)


def test_an_audited_range_is_covered_until_a_change(place: Place) -> None:
    books = place.books("copy")
    books.published("own", [0, 1, 2], days(0, 3))
    foreign = replace(books, stream="elsewhere", _version=1)
    foreign.published("added", [0], days(0, 1), mode="append")
    assert place.states("copy")[0] == "changed"
    books._cover("own", [0, 1, 2], days(0, 3), "compared", version=2)
    assert place.states("copy")[:3] == ["covered"] * 3
    foreign.published("more", [2], days(1, 2), mode="merge")
    assert place.states("copy")[:3] == ["covered", "changed", "covered"]
    books.rolled_back("own", [0, 1, 2], days(0, 3))
    assert place.states("copy")[:3] == ["gap"] * 3


def test_another_stream_that_has_replaced_rows_makes_them_stale(place: Place) -> None:
    books = place.books("copy")
    books.published("own", [0, 1, 2], days(0, 3))
    foreign = replace(books, stream="elsewhere")
    wide = Region(Box((None, day(1)), (None, day(2))))
    foreign.published("over", [0], wide)
    assert place.states("copy")[:3] == ["stale"] * 3


def test_a_gap_whose_last_attempt_has_failed_says_so(place: Place) -> None:
    books = place.books("copy")
    books.failed("bad", [0, 1, 2], days(0, 2))
    actual = place.survey("copy").intervals
    assert [item.state for item in actual] == ["failed", "failed", "gap", "incomplete"]
    assert actual[0].runs == ("bad",)
    assert spans(place.plan_replays("copy", what=BackfillMode.FAILED)) == [("05-01T00", "05-03T00")]
    assert spans(place.plan_replays("copy")) == [("05-01T00", "05-04T00")]

    books.published("good", [0, 1, 2], days(0, 1))
    books.claimed("running", [0], days(1, 2))
    assert place.states("copy") == ["covered", "gap", "gap", "incomplete"]


def test_a_rolled_back_merge_hides_no_failure_elsewhere(place: Place) -> None:
    books = place.books("copy")
    books.failed("bad", [0, 1, 2], days(1, 2))
    books.published("merged", [0, 1, 2], days(0, 1), mode="merge")
    # Its rollback claims all of the target, as keys know no range.
    whole = Region(Box.everything(EVENT))
    books.claimed("merged", None, whole, attempt=2)
    books.rolled_back("merged", [0, 1, 2], days(0, 1))
    books.stepped("merged", "rolled-back", {}, attempt=2)
    assert place.states("copy")[:3] == ["gap", "failed", "gap"]


def test_adjacent_published_output_hides_no_failed_attempt(place: Place) -> None:
    books = place.books("copy")
    books.failed("bad", [0, 1, 2], days(0, 1))
    books.published("half", [0, 1, 2], days(0, 0.5))
    actual = place.survey("copy").intervals[0]
    assert (actual.state, actual.runs) == (IntervalState.FAILED, ("half", "bad"))


def test_an_attempt_that_released_its_lock_is_ignored(place: Place) -> None:
    books = place.books("copy")
    books.failed("bad", [0, 1, 2], days(0, 1))
    books.claimed("late", [0, 1, 2], days(0, 1))
    assert place.states("copy")[0] == "gap"
    books.append("claims", {"claim": -1, "kind": "release", "run": "late", "attempt": 1})
    assert place.states("copy")[0] == "failed"


def test_output_awaiting_approval_is_no_gap(place: Place) -> None:
    books = place.books("copy")
    staged = {"audit": {"passed": True}, "staging": "x"}
    region = {"region": region_text(days(0, 2)), "request": {"mode": "replace"}}
    books.claimed("asked", [0, 1], days(0, 2))
    for step, detail in (("intent", region), ("audited", staged)):
        books.stepped("asked", step, detail)
    actual = place.survey("copy").intervals
    # Of the second day worker c is missing as well, and of that nothing waits.
    assert [str(item.state) for item in actual] == ["waiting", "gap", "gap", "incomplete"]
    assert actual[0].runs == ("asked",)
    assert [item.unfinished for item in actual] == [("asked",), ("asked",), (), ()]
    for what in BackfillMode:
        assert "05-01T00" not in dict(spans(place.plan_replays("copy", what=what)))

    books.stepped("asked", "rejected", {**staged, "by": "ann"})
    first = place.survey("copy").intervals[0]
    assert (first.state, first.unfinished) == ("gap", ())


def test_waiting_stale_intervals_are_not_replayed(place: Place) -> None:
    place.books("days", "by_day", "f00").published("old", [0, 1, 2], days(0, 3))
    books = place.books("days", "by_day", BY_DAY.code_hash)
    books.claimed("asked", [0, 1, 2], days(1, 2))
    books.stepped("asked", "audited", {"audit": {}, "staging": "x"})
    actual = place.survey("days").intervals
    assert [str(item.state) for item in actual[:3]] == ["stale", "waiting", "stale"]
    assert actual[1].runs == ("old", "asked")
    books.stepped("asked", "done", {"attempt": 1, "target_version": 1})
    assert place.states("days")[1] == "stale"  # Its coverage is not written yet.


@pytest.mark.parametrize(
    ("replay", "every", "lengths"),
    [
        ("copy", None, [24, 24, 24, 24]),
        ("copy", timedelta(hours=36), [36, 36, 36]),
        ("weekly", None, [168]),
        ("odd", None, [24, 24, 24, 24]),
    ],
)
def test_lengths_of_intervals(
    place: Place, replay: str, every: Every | None, lengths: list[int]
) -> None:
    actual = place.survey(replay, every=every).intervals
    read = datetime.fromisoformat
    hours = [(read(i.until) - read(i.since)) // timedelta(hours=1) for i in actual]
    assert hours == lengths
    # A week is from Sunday to Sunday; a schedule whose moments lie inside a grain does not cut.
    first = {"weekly": "2024-04-28"}.get(replay, "2024-05-01")
    assert actual[0].since == f"{first}T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"every": timedelta(hours=6)}, "CAP-EVERY"),
        ({"every": 3}, "CAP-EVERY"),
        ({"since": "2024-05-01T06:00:00Z"}, "CAP-GRAIN"),
        ({"since": "2024-05-02", "until": "2024-05-01"}, "CAP-RANGE"),
        ({"since": "soon"}, "CAP-TIME"),
        ({"until": "9999-12-30", "every": timedelta(days=1)}, "CAP-INTERVALS"),
        ({"as_of": 7}, "CAP-CUT"),
    ],
)
def test_invalid_requests_are_refused(place: Place, given: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        place.survey("days", **given)
    assert caught.value.code == code


def test_no_range_ends_within_a_step_of_the_stream(tmp_path: Path) -> None:
    place = Place(tmp_path, every=HOUR)
    inside = "2024-05-02T10:30:00Z"
    for given in ({"since": inside}, {"until": inside}, {"since": inside, "transform": "anyone"}):
        with pytest.raises(
            InvalidRequestError, match=r"CAP-GRAIN.*whole multiples of 1 hour"
        ) as caught:
            make_plan(place.lake, declarations(), Request("s", "t", **given))
        assert "2024-05-02T10:00:00.000000Z and 2024-05-02T11:00" in caught.value.hint
    with pytest.raises(InvalidRequestError, match="CAP-GRAIN"):
        plan_retire(place.lake, "s", inside)
    with pytest.raises(InvalidRequestError, match="CAP-GRAIN"):
        place.survey("copy", until=inside)
    with pytest.raises(
        InvalidRequestError, match=r"CAP-EVERY.*not a multiple of the grain, 1 hour"
    ):
        place.survey("copy", every=timedelta(minutes=90))
    # Where nothing is said, intervals are days all the same; moments inside a step cut nothing.
    for replay in ("copy", "quarters"):
        assert len(place.survey(replay).intervals) == 4
    assert make_plan(place.lake, declarations(), Request("s", "t", since="2024-05-02T10:00:00Z"))


def test_bigint_times_are_cut_by_numbers(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    epochs = TimeType.of(epoch=Kind.BIGINT)
    lay_tape(lake, "numbers", "a", [(n,) for n in range(7)], (7,), time_type=epochs)
    actual = intervals(lake, declarations(), "batches", every=4)
    assert [(i.since, i.until, i.state) for i in actual] == [
        ("0", "4", "gap"), ("4", "8", "incomplete"), ("8", "10", "incomplete"),
    ]  # fmt: skip
    assert len(intervals(lake, declarations(), "batches")) == 10
    with pytest.raises(InvalidRequestError, match="not a positive number"):
        intervals(lake, declarations(), "batches", every=timedelta(days=1))


def test_output_of_an_earlier_cut_does_not_cover_later_records(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    both = TimeType(
        (
            *TimeType.of(epoch=Kind.BIGINT).coordinates,
            *TimeType.of(event=Kind.TIMESTAMP).coordinates,
        )
    )
    times = [(n // 2, day(n)) for n in range(4)]
    lay_tape(lake, "s", "a", times, (5, day(2)), time_type=both)
    books = Books(lake, "s", lake.table("copy"))
    books.published("known", [0], Region(Box((None, day(0)), (2, day(2)))))
    declared = declarations()
    actual = intervals(lake, declared, "copy")
    assert [item.state for item in actual] == ["gap", "gap", "incomplete", "incomplete"]
    assert actual[0].partly == ("a",)

    # A followed replay plays whatever is complete, in any epoch.
    played = Region(Box.everything(both), Antichain.of([(5, day(1))]))
    books.published("followed", [0], played)
    assert [i.state for i in intervals(lake, declared, "copy")][:2] == ["covered", "gap"]
    [request] = plan_replays(survey(lake, declared, "copy"), BackfillRequest("copy"))
    assert request.since == "event=2024-05-02T00:00:00.000000Z"


def test_timeless_targets_count_only_the_last_replacement(place: Place) -> None:
    books = place.books("whole", "mixed", MIXED.code_hash)
    [only] = place.survey("whole").intervals
    assert (only.state, only.until) == (IntervalState.GAP, "2024-05-04T12:00:00.000000Z")
    books.published("all", None, days(None, 3.5), kept=days(None, None))
    assert place.states("whole") == ["covered"]
    books.published("less", None, days(None, 3), kept=days(None, None))
    assert place.states("whole") == ["gap"]
    [request] = place.plan_replays("whole")
    assert (request.since, request.until, request.as_of) == (None, None, 0)


def test_appended_rows_are_not_appended_twice(place: Place) -> None:
    books = place.books("added", "mixed", MIXED.code_hash)
    always = days(None, None)
    books.published("first", None, days(None, 1), kept=always)
    assert place.states("added") == ["covered", "gap", "gap", "incomplete"]
    assert spans(place.plan_replays("added")) == [("05-02T00", "05-04T00")]
    for what in (BackfillMode.ALL, BackfillMode.STALE):
        if what is BackfillMode.STALE:
            replace(books, code="f00").published("old", None, days(1, 2), kept=always)
        with pytest.raises(InvalidRequestError, match="are already there"):
            place.plan_replays("added", what=what)
    books.published("part", None, days(2, 2.5), kept=always)
    with pytest.raises(InvalidRequestError, match="part"):
        place.plan_replays("added")


def test_a_target_that_mixes_workers_is_filled_for_all_of_them(place: Place) -> None:
    code = ANYONE.code_hash
    place.books("anyone", "anyone", code).published("one", None, days(0, 1))
    actual = place.survey("anyone").intervals
    assert [item.state for item in actual] == ["covered", "gap", "gap", "incomplete"]
    [request] = place.plan_replays("anyone")
    assert request.workers is None
    # Of a transform that did keep the worker, two workers' rows are there.
    place.books("anyone", "by_day", "f00").published("two", [0, 1], days(1, 2))
    assert place.survey("anyone").intervals[1].missing == ("c",)
    assert {item.workers for item in place.plan_replays("anyone")} == {None}


def test_a_covered_interval_separates_two_gaps(place: Place) -> None:
    place.books("copy").published("middle", [0, 1, 2], days(1, 2))
    actual = place.plan_replays("copy")
    assert spans(actual) == [("05-01T00", "05-02T00"), ("05-03T00", "05-04T00")]


def test_only_lacking_workers_are_replayed(place: Place) -> None:
    place.books("copy").published("two", [0, 1], days(0, 2))
    actual = place.plan_replays("copy")
    assert [item.workers for item in actual] == [("c",), None]
    assert spans(actual) == [("05-02T00", "05-03T00"), ("05-03T00", "05-04T00")]
    assert {item.replay for item in actual} == {"copy"}


@pytest.mark.parametrize(
    ("order", "chunk", "expected"),
    [
        (Order.OLDEST, None, ["01-04"]),
        (Order.OLDEST, 2, ["01-03", "03-04"]),
        (Order.NEWEST, 2, ["02-04", "01-02"]),
        (Order.NEWEST, 1, ["03-04", "02-03", "01-02"]),
        (Order.OLDEST, 9, ["01-04"]),
    ],
)
def test_chunks_are_cut_from_where_the_work_starts(
    place: Place, order: Order, chunk: int | None, expected: list[str]
) -> None:
    actual = place.plan_replays("copy", order=order, chunk=chunk, what=BackfillMode.ALL)
    assert [f"{item.since[8:10]}-{item.until[8:10]}" for item in actual] == expected  # type: ignore[index]


def test_merges_start_with_the_oldest(place: Place) -> None:
    assert len(place.plan_replays("merged", chunk=1)) > 1
    with pytest.raises(InvalidRequestError, match="newest first") as caught:
        place.plan_replays("merged", chunk=1, order=Order.NEWEST)
    assert caught.value.code == "CAP-ORDER"
    assert len(place.plan_replays("merged", order=Order.NEWEST)) == 1


def test_merges_by_sequence_may_start_with_the_newest(place: Place) -> None:
    declared = declarations()
    merged = replace(declared.replays["merged"], sequence_by=("amount",))
    changed = replace(declared, replays={"merged": merged})
    requested = BackfillRequest("merged", chunk=1, order=Order.NEWEST)
    actual = list(prepare(place.lake, changed, requested).replays)
    assert len(actual) > 1
    starts = [item.since for item in actual]
    assert starts == sorted(starts, reverse=True)  # type: ignore[type-var]
    assert {item.sequence_by for item in actual} == {("amount",)}


def test_a_replay_with_approval_stops_for_it(place: Place) -> None:
    assert {replay.approve for replay in place.plan_replays("asked")} == {True}
    assert {replay.approve for replay in place.plan_replays("copy")} == {False}


@pytest.mark.parametrize("schedule", ["hourly", "0 6 * *", "0 0 30 2 *", ""])
def test_a_schedule_without_times_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidRequestError, match="defines no intervals") as caught:
        Scheduled(schedule)
    assert caught.value.code == "CAP-SCHEDULE"


def test_a_chunk_has_at_least_one_interval() -> None:
    with pytest.raises(InvalidRequestError, match="0 intervals"):
        BackfillRequest("copy", chunk=0)


STREAMS = """
streams:
  s:
    source: {format: parquet, path: "{lake}/source", schema: "place STRING, at TIMESTAMP"}
    workers: {by: column, column: place}
    time: {domain: event, column: at, every: 1 hour}
replays:
  copy: {stream: s, target: copy, since: 2024-05-01, until: 2024-05-04}
"""


@pytest.fixture
def run(place, monkeypatch, capsys):
    """Run a command with `--json`; the exit code and the object."""
    streams = Path(place.lake.root) / "streams.yaml"
    streams.write_text(STREAMS, encoding="utf-8")
    monkeypatch.setenv("CAPSTAN_LAKE", place.lake.root)
    monkeypatch.setenv("CAPSTAN_CONFIG", str(streams))

    def run(*words):
        code = main([*words, "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        assert out.count("\n") == 1
        return code, json.loads(out)

    return run


def test_gaps_ends_with_1_while_there_are_gaps(run, place, capsys):
    code, actual = run("gaps", "copy", "--every", "12 hours")
    assert (code, actual["error"]) == (1, "CAP-GAPS")
    assert actual["counts"] == {
        "covered": 0, "stale": 0, "gap": 6, "changed": 0, "failed": 0, "waiting": 0, "retired": 0,
        "incomplete": 0,
    }  # fmt: skip
    assert actual["intervals"][0] == {
        "since": "2024-05-01T00:00:00.000000Z", "until": "2024-05-01T12:00:00.000000Z",
        "state": "gap", "runs": [], "missing": ["a", "b"], "stale": [], "partly": [], "changes": [],
    }  # fmt: skip
    assert "`capstan backfill copy --every '12 hours'`" in actual["hint"]
    assert main(["gaps", "copy"]) == 1
    out, err = capsys.readouterr()
    assert "3 intervals: 3 gap" in out
    assert err.startswith("CAP-GAPS: replay copy: 3 intervals, 3 not covered\n")

    place.books("copy").published("one", [0, 1, 2], days(0, 3))
    code, actual = run("gaps", "copy")
    assert (code, "error" in actual, actual["counts"]["covered"]) == (0, False, 3)
    code, actual = run("backfill", "copy")
    assert (code, actual["runs"], actual["left"]) == (0, [], 0)
    assert main(["backfill", "copy"]) == 0
    assert "nothing to do: 3 intervals: 3 covered" in capsys.readouterr().out


def test_stale_intervals_have_a_hint(run, place):
    place.books("copy", "other").published("one", [0, 1, 2], days(0, 3))
    code, actual = run("gaps", "copy", "--since", "2024-05-02")
    assert (code, actual["message"]) == (1, "replay copy: 2 intervals, 2 stale")
    assert "`capstan backfill copy --stale --since 2024-05-02`" in actual["hint"]


def test_a_dry_run_lists_the_runs_without_a_jvm(run, capsys):
    code, actual = run("backfill", "copy", "--dry-run", "--chunk", "2", "--order", "newest")
    assert code == 0
    assert [(r["since"][:10], r["until"][:10], r["run"]) for r in actual["runs"]] == [
        ("2024-05-02", "2024-05-04", None), ("2024-05-01", "2024-05-02", None),
    ]  # fmt: skip
    assert (actual["left"], actual["done"], actual["dry_run"]) == (2, 0, True)
    assert main(["backfill", "copy", "--dry-run"]) == 0
    assert "would run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["gaps", "copies"], "CAP-REPLAY"),
        (["gaps", "../copy"], "CAP-NAME"),
        (["gaps", "copy", "--every", "often"], "CAP-EVERY"),
        (["backfill", "copy", "--all", "--stale"], "CAP-USAGE"),
        (["backfill", "copy", "--order", "random"], "CAP-USAGE"),
        (["backfill", "copy", "--chunk", "0"], "CAP-USAGE"),
        (["backfill", "copy", "--every", "1"], "CAP-EVERY"),
        (["backfill", "copy", "--since", "2025-01-01"], "CAP-RANGE"),
    ],
)
def test_invalid_commands(words, code, run):
    assert (run(*words)[0], run(*words)[1]["error"]) == (2, code)


def test_a_record_under_several_times_is_in_one_interval(tmp_path: Path) -> None:
    lake, config = Lake.at(tmp_path), declarations()
    line = TimeType.of(t=Kind.BIGINT)
    stamps = [[(2,), (7,)], [(5,), (5,)], []]
    lay_tape(lake, "numbers", ["a", "b"], [(0,), (8,)], None, time_type=line, stamps=stamps)
    found = survey(lake, config, "batches", every=2)
    assert [item.state for item in found.intervals] == [IntervalState.GAP] * 5
    counts = []
    for interval in found.intervals:
        request = Request("numbers", "t", since=interval.since, until=interval.until)
        plan = make_plan(lake, config, request)
        counts.append(sum(each.content(plan.reads).records for each in plan.inputs))
    assert counts == [2, 2, 2, 0, 2]
    books = Books(lake, "numbers", lake.table("batches"))
    books.published("r1", (0, 1), Region(Box((2,), (6,))))
    states = [item.state for item in survey(lake, config, "batches", every=2).intervals]
    assert states == [IntervalState.GAP, *[IntervalState.COVERED] * 2, *[IntervalState.GAP] * 2]
    # Without a declared range, it goes from the first to the last of their times.
    lay_tape(lake, "none", ["a"], [], None, time_type=line, stamps=[[]])
    free = Replay(name="free", stream="none", target="free")
    assert not survey(lake, replace(config, replays={"free": free}), "free").intervals


def test_of_several_coordinates_such_a_stream_is_refused(tmp_path: Path) -> None:
    lake, grid = Lake.at(tmp_path), TimeType.of(t0=Kind.BIGINT, t1=Kind.BIGINT)
    lay_tape(lake, "numbers", ["a"], [], None, time_type=grid, stamps=[[(0, 1), (1, 0)]])
    with pytest.raises(InvalidRequestError, match="a backfill works on messages") as caught:
        survey(lake, declarations(), "batches")
    assert caught.value.code == "CAP-STAMP"
