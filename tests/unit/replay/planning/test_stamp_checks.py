"""Replays, and all else, of tapes with messages under several times or none; no JVM anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capstan.backfill.survey import survey
from capstan.capture.batch.commit_events import CLOSING, append_statements
from capstan.capture.run import close, put_back
from capstan.core.config import Mode, ProjectConfig, Replay, Target, Transform
from capstan.core.times import PAIR, Kind, Time, TimeType
from capstan.errors import IncompleteError, InvalidRequestError, RangeLockedError
from capstan.interop.kafka import export_topics as topic_export
from capstan.interop.kafka.export_topics import export_topics
from capstan.interop.kafka.topic_layout import Topics
from capstan.interop.transfer.recapture import RecaptureRequest, recapture
from capstan.maintenance.retire import plan_retire
from capstan.replay.planning.planner import at_cuts, make_plan
from capstan.replay.planning.request import Request
from capstan.replay.planning.stamp_checks import require_same_places, timeless_records
from capstan.replay.planning.stream_input import open_inputs
from capstan.reporting.summaries import plan_facts
from capstan.storage.delta import arrow_writer
from capstan.storage.lake import Lake
from capstan.storage.tape import index
from capstan.storage.tape.settings import TapeSettings
from capstan.storage.tape.tape import change_settings, newest_cut, open_tape
from capstan.verify import verify
from tests.support import stamped_streams  # noqa: F401 - its pipelines
from tests.support.jvmless_lake import BY_DAY, lay_tape

if TYPE_CHECKING:
    from capstan.replay.planning.plan import Plan

LINE = TimeType.of(t=Kind.BIGINT)
GRID = TimeType.of(t0=Kind.BIGINT, t1=Kind.BIGINT)
PAIRS = replace(GRID, order=PAIR)
NAME = "stamped"
CONFIG = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {})
COUNTED = Transform(
    name="counted", sql="SELECT _time.t AS t, count(*) AS n FROM records GROUP BY ALL", time="t"
)


def line(root: Path, frontier: int | None = None) -> Lake:
    """Two workers with records at 0, 4 and 8, and under {2,7}, {5,5} and no element."""
    lake = Lake.at(root)
    stamps = [[(2,), (7,)], [(5,), (5,)], []]
    ends = None if frontier is None else (frontier,)
    times = [(0,), (4,), (8,)]
    lay_tape(lake, NAME, ["a", "b"], times, ends, time_type=LINE, stamps=stamps)
    return lake


def grid(root: Path, frontier: tuple[int, int] | None) -> Lake:
    """One worker with a record at (0,0), one under {(0,1),(1,0)} and one under no element."""
    lake = Lake.at(root)
    stamps: list[Any] = [[(0, 1), (1, 0)], []]
    lay_tape(lake, NAME, ["a"], [(0, 0)], frontier, time_type=GRID, stamps=stamps)
    return lake


def planned(lake: Lake, config: ProjectConfig | None = None, **asked: Any) -> Plan:
    return make_plan(lake, config or CONFIG, Request(NAME, "t", **asked))


def records(plan: Plan) -> int:
    return sum(stream.content(plan.reads).records for stream in plan.inputs)


def pairs(root: Path, frontier: tuple[int, int] | None) -> Lake:
    """One worker with records at (0,5), (1,0) and (2,3), under {(0,7),(1,2)} and no element."""
    lake = Lake.at(root)
    times, stamps = [(0, 5), (1, 0), (2, 3)], [[(0, 7), (1, 2)], []]
    lay_tape(lake, NAME, ["a"], times, frontier, time_type=PAIRS, stamps=stamps)
    return lake


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        ({}, 4),
        ({"until": "t0=1"}, 2),
        ({"until": "[0, 7]"}, 1),
        ({"since": "[0, 6]", "until": "[1, 1]"}, 2),
        ({"since": "[1, 1]"}, 1),
        ({"since": "[2, 4]"}, 0),
    ],
)
def test_a_range_of_pairs_has_what_lies_between(
    tmp_path: Path, asked: dict[str, str], times: int
) -> None:
    plan = planned(pairs(tmp_path, None), **asked)
    assert plan.inputs.streams[0].content(plan.reads).times == times
    assert timeless_records(plan) == {"read": int(not asked), "left_out": int(bool(asked))}


def test_a_frontier_of_pairs_completes_what_is_before_it(tmp_path: Path) -> None:
    lake = pairs(tmp_path, (1, 0))
    plan = planned(lake, follow="f")
    assert (records(plan), plan.reached.elements) == (2, ((1, 0),))
    assert records(planned(lake, until="t0=1")) == 2
    assert planned(lake, until="t0=1").complete
    assert not planned(lake, until="[1, 1]", partial=True).complete
    assert planned(lake, since="[1, 0]", until="t0=2", partial=True).is_empty
    with pytest.raises(IncompleteError, match="no time of the range is complete"):
        planned(lake, since="[1, 0]", until="t0=2").require_complete()
    with pytest.raises(IncompleteError, match="the range is not complete"):
        planned(lake, since="[0, 6]", until="t0=2").require_complete()
    for wrong in ("t1=1", "[null, 1]"):
        with pytest.raises(InvalidRequestError, match="begins with t0"):
            planned(lake, until=wrong)
    with pytest.raises(InvalidRequestError, match="is empty or reversed"):
        planned(lake, since="[1, 2]", until="t0=1")
    with pytest.raises(InvalidRequestError, match="is empty or reversed"):
        planned(lake, since="t0=1", until="[1, 0]")


def test_frontiers_of_pairs_are_in_their_order(tmp_path: Path) -> None:
    """Of a worker, of all, and of none; as Products none of these times would be the least."""
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a", "b"], [(0, 5), (2, 3)], (0, 5), time_type=PAIRS)
    tape = open_tape(lake, NAME, stamps=True)
    moved = [(Time((0, 5)), -1), (Time((1, 0)), 1), (Time((0, 9)), 1)]
    append_statements(tape, [(1, CLOSING, moved)], {1: 3}, {}, batch=1, commit=1)
    state = index.tape_state(tape, newest_cut(tape))
    assert [each.frontier.elements for each in state.workers] == [((0, 5),), ((0, 9),)]
    for workers, least in ((state.workers, (0, 5)), (state.workers[1:], (0, 9)), ((), (0, 0))):
        frontier = index.frontier_of(tape, workers)
        assert (frontier.elements, frontier.order) == ((least,), PAIR)
    # How far they are is told by the first coordinate.
    assert state.greatest == 2


def test_what_pairs_are_refused_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = pairs(tmp_path, None)
    monkeypatch.setattr(topic_export, "_texts", lambda spark, topics: [])
    config = replace(CONFIG, replays={"all": Replay(name="all", stream=NAME, target="t")})
    spark: Any = None
    tape = open_tape(lake, NAME, stamps=True)

    def topics() -> object:
        place = Topics("nowhere:9092", "t")
        return export_topics(spark, lake, tape, place, workers=[0], cut=newest_cut(tape))

    refused: list[tuple[str, Callable[[], object]]] = [
        ("transform by_day", lambda: planned(lake, transform=BY_DAY.name)),
        ("mode merge", lambda: planned(lake, mode=Mode.MERGE, keys=("k",))),
        ("a backfill", lambda: survey(lake, config, "all")),
        ("an export to topics in the form of timely 0.31", topics),
        ("`capstan retire`", lambda: plan_retire(lake, NAME, "t0=3")),
        ("`capstan close`", lambda: close(spark, lake, NAME)),
        ("`capstan late --put-back`", lambda: put_back(spark, lake, NAME)),
    ]
    for what, call in refused:
        with pytest.raises(InvalidRequestError, match=f"pairs.*{what} works on times") as caught:
            call()
        assert caught.value.code == "CAP-TIME-TYPE"
    assert not Path(lake.table("t")).exists()


@pytest.mark.parametrize(
    ("since", "until", "times"),
    [(None, "1", {0}), ("1", "5", {2, 4}), ("5", "8", {5}), ("6", "8", set()), ("8", None, {8})],
)
def test_the_least_element_decides(
    tmp_path: Path, since: str | None, until: str | None, times: set[int]
) -> None:
    plan = planned(line(tmp_path), since=since, until=until)
    content = plan.inputs.streams[0].content(plan.reads)
    assert (content.records, content.times) == (2 * len(times), len(times))
    assert timeless_records(plan) == {"read": 0, "left_out": 2}


def test_all_records_are_read_where_nothing_bounds_them(tmp_path: Path) -> None:
    lake = line(tmp_path)
    plan = planned(lake)
    content = plan.inputs.streams[0].content(plan.reads)
    assert (content.records, content.times, content.messages) == (12, 5, 12)
    assert timeless_records(plan) == {"read": 2, "left_out": 0}
    one = planned(lake, workers=("b",))
    assert (records(one), timeless_records(one)) == (6, {"read": 1, "left_out": 0})


def test_an_open_stream_gives_what_is_complete(tmp_path: Path) -> None:
    plan = planned(line(tmp_path, 5), partial=True)
    assert records(plan) == 6
    assert timeless_records(plan) == {"read": 0, "left_out": 2}


@pytest.mark.parametrize(
    ("timeless", "words"),
    [
        (None, ""),
        ({"read": 0, "left_out": 0}, ""),
        ({"read": 2, "left_out": 0}, "2 records"),
        ({"read": 0, "left_out": 2}, "2 records left out: ranges and pipelines have times"),
    ],
)
def test_reports_say_it(timeless: dict[str, int] | None, words: str) -> None:
    assert dict(plan_facts({"timeless": timeless}, str))["without a time"] == words


def test_other_tapes_say_nothing_of_it(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0,)], None, time_type=LINE)
    plan = planned(lake)
    assert timeless_records(plan) is None


@pytest.mark.parametrize(
    ("frontier", "asked", "expected"),
    [
        (None, {}, 3),
        ((1, 1), {"partial": True}, 2),
        (None, {"since": "t0=0,t1=0", "until": "t0=2,t1=2"}, 2),
        (None, {"since": "t0=2"}, 0),
        ((0, 1), {"partial": True}, 2),
        ((1, 0), {"partial": True}, 2),
        (None, {"until": "t0=1"}, 2),
        (None, {"since": "t0=1"}, 0),
        (None, {"until": "t1=1"}, 2),
        (None, {"since": "t1=1"}, 0),
        (None, {"until": "t0=1,t1=1"}, 1),
        (None, {"until": "t0=1,t1=2"}, None),
        (None, {"since": "t0=0,t1=1"}, None),
    ],
)
def test_a_range_has_what_no_earlier_one_has(
    tmp_path: Path, frontier: tuple[int, int] | None, asked: dict[str, Any], expected: int | None
) -> None:
    lake = grid(tmp_path, frontier)
    if expected is not None:
        assert records(planned(lake, **asked)) == expected
        return
    with pytest.raises(
        InvalidRequestError, match=r"a stamp of 2 elements: \(0, 1\), \(1, 0\)"
    ) as caught:
        planned(lake, **asked)
    assert caught.value.code == "CAP-STAMP"
    assert caught.value.fields["worker"] == 0


def test_a_follower_of_several_coordinates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="a followed replay works on messages"):
        planned(grid(tmp_path, (1, 1)), follow="f")
    assert records(planned(line(tmp_path / "line"), follow="f")) == 12


@pytest.mark.parametrize(
    ("before", "workers", "same", "exactly"),
    [
        (None, None, True, True),
        ({"since": "t0=2"}, None, True, True),
        # In `t0 < 1` and in all times at (0,1); in `t1 < 1` at (1,0), which all times have as well.
        ({"until": "t0=1"}, None, True, True),
        ({"until": "t1=1"}, None, True, False),
        ({"until": "t1=1"}, (1,), True, True),
    ],
)
def test_rows_of_another_range_are_replaced_where_they_are(
    tmp_path: Path,
    before: dict[str, Any] | None,
    workers: tuple[int, ...] | None,
    *,
    same: bool,
    exactly: bool,
) -> None:
    lake = grid(tmp_path, None)
    plan, other = planned(lake), planned(lake, **before or {})
    scopes = [replace(other.scope, workers=workers)]
    for wanted, strict in ((same, False), (exactly, True)):
        with nullcontext() if wanted else pytest.raises(InvalidRequestError, match="are elsewhere"):
            require_same_places(plan, scopes, exactly=strict)
    # The other way round: what stands in all times at (0,1) is outside of `t1 < 1`.
    if before == {"until": "t1=1"} and workers is None:
        with pytest.raises(InvalidRequestError, match="are elsewhere"):
            require_same_places(other, [plan.scope])


def test_rows_that_a_range_would_take_away_are_kept(tmp_path: Path) -> None:
    lake = grid(tmp_path, None)
    # It has not the stamp, since (1,0) is before it; but all times have it at (0,1).
    plan = planned(lake, since="t1=1")
    with pytest.raises(InvalidRequestError, match="are elsewhere") as caught:
        require_same_places(plan, [planned(lake).scope])
    assert caught.value.code == "CAP-STAMP"


def test_topics_of_0_31_have_no_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = line(tmp_path)
    spark: Any = None
    monkeypatch.setattr(topic_export, "_texts", lambda spark, topics: [])
    tape, place = open_tape(lake, NAME, stamps=True), Topics("nowhere:9092", "t")
    for timely in (None, "0.31"):
        with pytest.raises(
            InvalidRequestError, match=r"a stamp of 2 elements: 2, 7, where topics"
        ) as caught:
            export_topics(
                spark, lake, tape, place, workers=[0], cut=newest_cut(tape), timely=timely
            )
        assert (caught.value.code, caught.value.hint[:20]) == ("CAP-STAMP", "give --timely 0.32, ")
        assert str(caught.value.hint).endswith("stamps, or times that are pairs")
    # The types of an import may be registered in another process only.
    types = TapeSettings({"import": {"time_type": "u64", "record_type": "of_others"}})
    with pytest.raises(InvalidRequestError, match="where topics"):
        export_topics(
            spark, lake, replace(tape, settings=types), place, workers=[0], cut=newest_cut(tape)
        )


def test_what_needs_one_time_is_refused(tmp_path: Path) -> None:
    lake = line(tmp_path)
    config = replace(CONFIG, targets={"t": Target(name="t", time="at")})
    spark: Any = None

    refused: list[tuple[str, Callable[[], object]]] = [
        ("a target with a time of its own", lambda: planned(lake, config)),
        ("`capstan retire`", lambda: plan_retire(lake, NAME, "3")),
        ("`capstan close`", lambda: close(spark, lake, NAME)),
        ("`capstan late --put-back`", lambda: put_back(spark, lake, NAME)),
    ]
    for what, call in refused:
        with pytest.raises(InvalidRequestError, match=f"{what} works on messages") as caught:
            call()
        assert caught.value.code == "CAP-STAMP"
    assert not Path(lake.table("t")).exists()


def test_a_recapture_that_would_leave_records_out_makes_no_stream(tmp_path: Path) -> None:
    lake = line(tmp_path, 5)
    spark: Any = None
    with pytest.raises(InvalidRequestError, match="complete only when the stream has ended") as it:
        recapture(spark, lake, RecaptureRequest(NAME, "copy"))
    assert it.value.code == "CAP-STAMP"
    assert lake.streams() == [NAME]


@pytest.mark.parametrize(("declared", "asked"), [("0.31", None), (None, "0.31")])
def test_a_recapture_in_the_form_of_0_31_takes_no_stamps_that_come_later(
    tmp_path: Path, declared: str | None, asked: str | None
) -> None:
    """It was declared before, or is now."""
    lake = line(tmp_path)
    lay_tape(lake, "copy", ["0"], [(0,)], (1,), time_type=LINE)
    stream = {"stream": NAME, "tape": open_tape(lake, NAME, stamps=True).identity}
    fixed = {"domain": "recapture", "of": stream, "workers": None, "count": 1}
    stated = {} if declared is None else {"timely": declared}
    change_settings(open_tape(lake, "copy"), TapeSettings({**fixed, **stated}))
    spark: Any = None
    with pytest.raises(InvalidRequestError, match="2, 7, and the re-capture is declared") as it:
        recapture(spark, lake, RecaptureRequest(NAME, "copy", timely=asked))
    assert (it.value.code, str(it.value.hint).endswith("--timely 0.32")) == ("CAP-STAMP", True)
    assert not open_tape(lake, "copy", stamps=True).stamped


def test_messages_of_stamps_are_verified(tmp_path: Path) -> None:
    lake = grid(tmp_path, (1, 1))
    spark: Any = None
    verdict = verify(spark, lake, open_tape(lake, NAME, stamps=True), remember=False)
    assert verdict.valid
    assert [(w.events, w.records) for w in verdict.workers] == [(4, 3)]


def test_a_tape_that_gets_stamps_while_it_is_read_is_opened_again(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0,)], None, time_type=LINE)
    tape = open_tape(lake, NAME)
    assert newest_cut(tape).commit == 0
    arrow_writer.set_properties(tape.paths.events, {"capstan.format": "3"})
    with pytest.raises(RangeLockedError, match="while it was read") as caught:
        newest_cut(tape)
    assert caught.value.code == "CAP-CONFLICT"
    assert newest_cut(open_tape(lake, NAME, stamps=True)).commit == 0


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("transform by_day", {"transform": BY_DAY.name}),
        ("pipeline stamp_sizes", {"pipeline": "stamp_sizes"}),
        ("mode merge", {"mode": Mode.MERGE, "keys": ("k",)}),
    ],
)
def test_what_needs_one_time_is_refused_for_several_coordinates(
    tmp_path: Path, what: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match=f"{what} works on messages") as caught:
        planned(grid(tmp_path, None), **asked)
    assert caught.value.code == "CAP-STAMP"


@pytest.mark.parametrize(
    ("asked", "times"),
    [
        ({}, [0, 2, 4, 5, 8]),
        ({"until": "5"}, [0, 2, 4]),
        ({"since": "1", "until": "5"}, [2, 4]),
        ({"since": "6"}, [8]),
    ],
)
def test_a_pipeline_reads_what_has_a_time(
    tmp_path: Path, asked: dict[str, str], times: list[int]
) -> None:
    plan = planned(line(tmp_path), pipeline="stamp_sizes", **asked)
    [stream] = plan.inputs
    found = index.messages(stream.tape, stream.cut, stream.workers, plan.reads)
    assert sorted(each.time for each in found) == sorted([(time,) for time in times] * 2)
    assert timeless_records(plan) == {"read": 0, "left_out": 2}
    # What it is asked for is in the run's identity, also where nothing bounds it.
    reads = json.loads(str(plan.computation.identity_parts(plan.region)["reads"]))
    assert [bound is not None for bound in (*reads["since"], *reads["until"])] == [
        name in asked for name in ("since", "until")
    ]


def test_a_stream_that_has_stamps_by_now_is_read_from_its_first_time_on(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0,)], None, time_type=LINE)
    plan = planned(lake, pipeline="stamp_sizes")
    arrow_writer.set_properties(lake.stream(NAME).events, {"capstan.format": "3"})
    again = at_cuts(plan, plan.inputs.cuts)
    since = [each.computation.reads(each.region).box.since for each in (plan, again)]
    assert since == [(None,), (0,)]


def test_streams_in_two_orders_are_not_replayed_together(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    for name, times in (("pairs", PAIRS), ("grid", GRID)):
        lay_tape(lake, name, ["a"], [(0, 5)], None, time_type=times)
    streams = {"a": "grid", "b": "pairs"}
    with pytest.raises(
        InvalidRequestError, match="t0 bigint, t1 bigint, and pairs of t0 bigint, t1 bigint"
    ) as caught:
        open_inputs(lake, Request("grid+pairs", "t", pipeline="p", streams=streams), None)
    assert caught.value.code == "CAP-STREAMS"


def test_a_transform_reads_what_a_copy_does(tmp_path: Path) -> None:
    lake, asked = line(tmp_path), {"transform": COUNTED.name}
    config = replace(CONFIG, transforms={COUNTED.name: COUNTED})
    assert timeless_records(planned(lake, config, **asked)) == {"read": 2, "left_out": 0}
    part = planned(lake, config, **asked, since="2", until="8")
    assert (records(part), timeless_records(part)) == (6, {"read": 0, "left_out": 2})


def test_streams_of_single_times_are_read_as_before(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0,), (3,)], None, time_type=LINE)
    plan = planned(lake, pipeline="stamp_sizes")
    assert plan.computation.identity_parts(plan.region) == {
        "pipeline": "stamp_sizes.out",
        "reads": '{"above": null, "below": null, "since": [null], "until": [null]}',
    }
    assert plan.computation.reads_stamp
    assert not planned(lake, pipeline="stamp_windows").computation.reads_stamp
