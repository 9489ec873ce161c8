"""Replays through pipelines as they are planned, without a JVM: ranges, refusals, identity."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.backfill.survey import survey
from capstan.cli import main
from capstan.core.config import Mode, ProjectConfig, Replay, load_config
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.demo import pipelines
from capstan.errors import IncompleteError, InvalidRequestError
from capstan.replay.planning.cursor import Cursor, find_cursor
from capstan.replay.planning.pipeline_computation import PipelineComputation
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan, nothing_new, with_region
from capstan.replay.planning.request import Request
from capstan.replay.preview import published_overlap
from capstan.replay.snapshots import Snapshot
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from tests.support import two_sink_pipeline
from tests.support.jvmless_lake import Books, intent_json, lay_tape
from tests.support.pipeline_samples import REFERENCES
from tests.support.sample_streams import NAME, declared, little_stream

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
PAIR = TimeType.of(epoch=Kind.BIGINT, event=Kind.TIMESTAMP)


def declarations(folder: Path, **replays: object) -> ProjectConfig:
    actual = declared(little_stream(folder / "source"))
    return ProjectConfig(
        actual.path, actual.streams, actual.transforms, actual.targets, dict(replays), REFERENCES
    )  # type: ignore[arg-type]


class Place:
    """A tape of three workers with a record an hour for ten hours; the frontier after eight."""

    def __init__(self, root: Path, frontier: float | None = 8, **replays: object) -> None:
        self.lake = Lake.at(root)
        ends = None if frontier is None else (int(frontier * HOUR_US),)
        lay_tape(self.lake, NAME, ["a", "b", "c"], [(n * HOUR_US,) for n in range(10)], ends)
        self.declarations = declarations(root, **replays)

    def plan(self, pipeline: str = "places", sink: str | None = "hours", **asked: object) -> Plan:
        return make_plan(self.lake, self.declarations, self.request(pipeline, sink, **asked))

    def request(self, pipeline: str, sink: str | None, **asked: object) -> Request:
        return Request(NAME, "t", pipeline=pipeline, sink=sink, **asked)  # type: ignore[arg-type]


def pipe(plan: Plan) -> PipelineComputation:
    assert isinstance(plan.computation, PipelineComputation)
    return plan.computation


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(("hours", "fits"), [(1, True), (2, False), (24, False)])
def test_operators_finer_than_the_stream_are_refused(
    tmp_path: Path, *, hours: int, fits: bool
) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0,)], (10 * DAY_US,), every=hours * HOUR_US)
    requested = Request(NAME, "t", pipeline="places", sink="hours")
    if fits:
        make_plan(lake, declarations(tmp_path), requested)
        return
    with pytest.raises(
        InvalidRequestError, match=r"^CAP-GRAIN: pipeline places: size of by_hour is 1 hour"
    ):
        make_plan(lake, declarations(tmp_path), requested)


def test_a_length_of_1_puts_together_what_has_the_same_time(tmp_path: Path) -> None:
    """As `late_carriers` of the main job ranks the carriers of a day: a step has one time."""
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0,)], (10 * DAY_US,), every=HOUR_US)
    requested = Request(NAME, "t", pipeline="late_carriers", sink="days")
    name = f"{pipelines.__name__}:late_carriers"
    make_plan(lake, replace(declarations(tmp_path), pipelines={"late_carriers": name}), requested)


def hour(number: int) -> str:
    return f"1970-01-01T{number:02}:00:00Z"


def hours(region: Region) -> tuple[object, ...]:
    box = region.simplified().box
    return tuple(None if item is None else item / HOUR_US for item in (box.since[0], box.until[0]))


def test_more_is_read_than_is_written(place: Place) -> None:
    plan = place.plan(since=hour(3), until=hour(6))
    assert plan.complete
    assert hours(plan.region) == (3, 6)
    assert hours(plan.reads) == (-5, 8)
    assert plan.computation.name == "places.hours"
    assert (plan.layout.worker, plan.layout.time, plan.keys) == (None, "window_start", ("place",))
    assert plan.scope.workers is None
    assert plan.computation.to_json() == {
        "name": "places",
        "sink": "hours",
        "reads": {"since": "1969-12-31T19:00:00.000000Z", "until": "1970-01-01T08:00:00.000000Z"},
        "resumed": None,
    }


def test_a_range_is_complete_when_all_that_is_read_is(place: Place) -> None:
    plan = place.plan(since=hour(3), until=hour(7))
    assert not plan.complete
    with pytest.raises(IncompleteError, match="1970-01-01T08:00:00"):
        plan.require_complete()
    # In part: as far as nothing still to come can change it.
    part = place.plan(since=hour(3), until=hour(7), partial=True)
    part.require_complete()
    assert hours(part.region) == (3, 6)
    assert hours(part.reads) == (-5, 8)


@pytest.mark.parametrize("asked", [{"partial": True}, {}])
@pytest.mark.parametrize(("since", "none"), [(5, False), (6, True), (7, True), (12, True)])
def test_a_range_without_a_complete_time_is_refused(
    place: Place, asked: dict[str, object], since: int, *, none: bool
) -> None:
    """Cut to what is complete, it would be empty or reversed."""
    bounds = {"since": hour(since), **({"until": hour(13)} if asked else {})}
    plan = place.plan(**bounds, **asked)
    assert plan.is_empty == none
    if not none:
        plan.require_complete()
        return
    with pytest.raises(IncompleteError, match="CAP-INCOMPLETE: .* no time of the range"):
        plan.require_complete()
    followed = place.plan(since=hour(since), follow="nightly")
    followed.require_complete()
    assert nothing_new(followed)


def test_copies_without_a_complete_time_are_refused(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [(0, 0)], (2, HOUR_US), time_type=PAIR)
    for since, until, known_at, empty in [
        ("event=1970-01-01T02:00", None, None, False),
        ("epoch=2,event=1970-01-01T01:00", None, None, True),
        ("epoch=2,event=1970-01-01T00:59", "epoch=9,event=1970-01-01T05:00", None, False),
        ("epoch=2,event=1970-01-01T01:00", "epoch=9,event=1970-01-01T05:00", None, True),
        ("epoch=2,event=1970-01-01T01:00", None, 5, True),
        ("event=1970-01-01T01:00", None, 1, False),
    ]:
        requested = Request(NAME, "t", since=since, until=until, known_at=known_at, partial=True)
        plan = make_plan(lake, declarations(tmp_path), requested)
        assert plan.is_empty == empty, requested


def test_open_ranges_end_at_the_frontier_or_stream_end(tmp_path: Path) -> None:
    plan = Place(tmp_path / "open").plan()
    assert plan.complete
    assert hours(plan.region) == (None, 6)
    assert pipe(plan).reach.last == 8 * HOUR_US
    closed = Place(tmp_path / "closed", frontier=None).plan()
    assert hours(closed.region) == (None, None)
    assert pipe(closed).reach.last > 10**18
    assert closed.reached == Antichain()


def test_only_whole_grains_are_written(tmp_path: Path) -> None:
    place = Place(tmp_path, frontier=8.5)
    assert hours(place.plan().region) == (None, 6)
    assert hours(place.plan().reads) == (None, 8)
    assert hours(place.plan(sink="pairs").region) == (None, 6.5)


def test_nothing_is_settled_at_the_start_of_a_stream(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, NAME, ["a"], [], (TimeType.of(event=Kind.TIMESTAMP).minimum[0],))
    request = Request(NAME, "t", pipeline="places", sink="hours")
    plan = make_plan(lake, declarations(tmp_path), request)
    assert plan.region.box.until == (plan.time_type.minimum[0],)
    assert plan.computation.to_json()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[int | None, Place]:
    """Tapes by where their frontier stands; that of None is closed."""
    return {end: Place(tmp_path_factory.mktemp("again"), end) for end in (None, 0, 4, 9, 12)}


@settings(max_examples=15, deadline=None)
@given(st.integers(-2, 11), st.integers(1, 6), st.sampled_from([None, 0, 4, 9, 12]))
def test_what_an_intent_pinned_is_read_again_as_it_was(
    places: dict[int | None, Place], since: int, length: int, frontier: int | None
) -> None:
    place = places[frontier]
    for sink in ("hours", "pairs"):
        plan = place.plan(
            sink=sink, partial=True, since=_bound(since), until=_bound(since + length)
        )
        again = with_region(place.plan(sink=sink), plan.region)
        assert (again.reads, again.scope) == (plan.reads, plan.scope)
        assert pipe(again).reach == pipe(plan).reach


def _bound(number: int) -> str:
    coordinate = TimeType.of(event=Kind.TIMESTAMP).coordinates[0]
    return str(coordinate.render(number * HOUR_US))


def test_ranges_are_whole_grains_of_the_sink(place: Place) -> None:
    half = "1970-01-01T03:30:00Z"
    with pytest.raises(
        InvalidRequestError, match="pipeline places at hours works on whole multiples"
    ) as no:
        place.plan(since=half)
    assert no.value.code == "CAP-GRAIN"
    # Rows that carry their own time can be told apart anywhere.
    assert place.plan(sink="pairs", since=half).layout.time == "_time"


@pytest.mark.parametrize(
    ("pipeline", "asked", "code", "said"),
    [
        (
            "places",
            {"sink": None},
            "CAP-PIPELINE",
            "has several sinks, and none is chosen: hours, pairs, starts",
        ),
        ("places", {"sink": "days"}, "CAP-PIPELINE", "has no sink 'days'"),
        ("plces", {}, "CAP-PIPELINE", "did you mean 'places'"),
        ("../x", {}, "CAP-NAME", "cannot name a pipeline"),
        ("places", {"transform": "sum_by_day"}, "CAP-PIPELINE", "a transform and a pipeline"),
        ("places", {"workers": ("a",)}, "CAP-WORKERS", "pipeline places at hours mixes workers"),
        ("firsts", {"sink": None, "mode": Mode.MERGE}, "CAP-KEYS", "merge needs the columns"),
    ],
)
def test_what_cannot_be_played_is_refused(
    place: Place, pipeline: str, asked: dict[str, object], code: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        place.plan(pipeline, **{"sink": "hours", **asked})
    assert caught.value.code == code


def test_a_sink_needs_a_pipeline() -> None:
    with pytest.raises(InvalidRequestError, match="has a sink but no pipeline"):
        Request(NAME, "t", sink="out")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], "CAP-USAGE", "--all-sinks requires --pipeline"),
        (["--pipeline", "places", "--sink", "hours"], "CAP-USAGE", "--sink cannot be combined"),
        (["--pipeline", "places", "--into", "t"], "CAP-USAGE", "--into cannot be combined"),
        (
            ["--pipeline", "split", "--transform", "x"],
            "CAP-PIPELINE",
            "has a transform and a pipeline",
        ),
        (["--pipeline", "places"], "CAP-PIPELINE", "names no target for pairs, starts"),
        (["--pipeline", "split", "--workers", "a"], "CAP-WORKERS", "split"),
    ],
)
def test_what_cannot_go_into_all_tables_is_refused(
    place: Place, capsys: pytest.CaptureFixture[str], words: list[str], code: str, said: str
) -> None:
    named = json.dumps({"pipelines": {**REFERENCES, "split": two_sink_pipeline.REFERENCE}})
    streams = place.lake.root + "/streams.yaml"
    Path(streams).write_text(named, encoding="utf-8")
    requested = ["--lake", place.lake.root, "--config", streams, "--json", "replay", NAME]
    assert main([*requested, "--all-sinks", *words]) == 2
    error = json.loads(capsys.readouterr().out)
    assert error["error"] == code
    assert said in error["message"]


def test_a_pipeline_by_the_clock_is_refused_with_its_reason(place: Place) -> None:
    actual = place.declarations
    clock = {"by_clock": "tests.bench.workloads.nexmark_queries:q12"}
    named = ProjectConfig(actual.path, actual.streams, {}, {}, {}, clock)
    with pytest.raises(InvalidRequestError, match="current_timestamp has no fixed value"):
        make_plan(place.lake, named, Request(NAME, "t", pipeline="by_clock"))


def test_workers_can_be_chosen_where_the_sink_keeps_them(place: Place) -> None:
    plan = place.plan("by_worker", None, workers=("c", "a"))
    assert plan.scope.workers == (0, 2)
    assert plan.layout.worker == "_worker"


def test_an_identity_tells_pipelines_sinks_and_what_is_read(place: Place) -> None:
    def identity(*what: str | None, **asked: object) -> str:
        return place.plan(*what, **asked).identity  # type: ignore[arg-type]

    given = {"since": hour(2), "until": hour(4)}
    actual = {
        identity("places", "hours", **given),
        identity("places", "pairs", **given),
        identity("firsts", None, **given),
        identity("shaky", None, **given),
        identity("places", "hours", since=hour(2), until=hour(5)),
    }
    assert len(actual) == 5
    assert identity("places", "hours", **given, peers=7) in actual
    copied = make_plan(place.lake, place.declarations, Request(NAME, "t", **given))  # type: ignore[arg-type]
    assert copied.identity not in actual
    # What older runs were called must not change.
    assert copied.identity == _identity_of_a_copy(copied)


def _identity_of_a_copy(plan: Plan) -> str:
    import hashlib
    import json

    tape = delta.open_table(plan.inputs.tape.paths.events).metadata().id
    region = json.dumps(
        {"above": None, "below": None, "since": [2 * HOUR_US], "until": [4 * HOUR_US]}
    )
    parts = {
        "stream": NAME, "tape": tape, "cut": 0, "workers": [0, 1, 2], "region": region,
        "transform": None, "code": "", "mode": "replace", "keys": [], "target": plan.target,
    }  # fmt: skip
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def test_unbounded_reads_from_the_very_first_record(place: Place) -> None:
    plan = place.plan("firsts", None, since=hour(4), until=hour(6))
    assert hours(plan.region) == (4, 6)
    assert hours(plan.reads) == (None, 6)


def test_a_followed_pipeline_goes_on_where_it_has_ended(tmp_path: Path) -> None:
    place = Place(tmp_path / "one")
    requested = {"follow": "nightly"}
    first = place.plan(**requested)
    assert hours(first.region) == (None, 6)
    request = place.request("places", "hours", **requested)
    on = Place(tmp_path / "two", frontier=11)
    second = make_plan(on.lake, on.declarations, request, cursor=Cursor(first.reached))
    assert hours(second.region) == (6, 9)
    assert hours(second.reads) == (-2, 11)
    assert not nothing_new(second)
    third = make_plan(on.lake, on.declarations, request, cursor=Cursor(second.reached))
    assert nothing_new(third)
    closed = Place(tmp_path / "three", frontier=None)
    last = make_plan(closed.lake, closed.declarations, request, cursor=Cursor(second.reached))
    assert hours(last.region) == (9, None)
    ended = make_plan(closed.lake, closed.declarations, request, cursor=Cursor(last.reached))
    assert nothing_new(ended)


def test_a_followed_pipeline_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    place = Place(tmp_path / "one")
    first = place.plan(follow="nightly", peers=2)
    snapshot = Snapshot("r-1", "places", 2, first.frontier, pipe(first).reach.last, 1, 1, 0, 9)
    on = Place(tmp_path / "two", frontier=11)
    request = place.request("places", "hours", follow="nightly")
    cursor = Cursor(first.reached, snapshot)
    second = make_plan(on.lake, on.declarations, request, cursor=cursor)
    assert hours(second.region) == (6, 9)
    assert hours(second.reads.simplified()) == (8, 11)
    assert hours(Region(pipe(second).reach.reads)) == (8, 11)
    assert second.peers == 2
    other = make_plan(on.lake, on.declarations, replace(request, peers=5), cursor=cursor)
    assert other.peers == 5
    assert second.computation.to_json()["resumed"] == "r-1"


def test_following_another_sink_under_the_same_name_is_refused(place: Place) -> None:
    from capstan.storage.ledger.runs import read_last_published

    request = place.request("places", "hours", follow="nightly")
    books = Books(place.lake, NAME, place.lake.table("t"))
    books.stepped("r", "intent", intent_json(request, [[6 * HOUR_US]]))
    books.stepped("r", "done", {"attempt": 1, "target_version": 1})
    last = read_last_published(place.lake, "r", books.target)
    actual = find_cursor(place.lake, request, last)
    assert actual == Cursor(Antichain.of([Time((6 * HOUR_US,))]))
    with pytest.raises(InvalidRequestError, match="with sink hours, not pairs"):
        find_cursor(place.lake, place.request("places", "pairs", follow="nightly"), last)
    # An intent of before there were pipelines lacks their fields.
    older = Request(NAME, "t", follow="copies")
    fields = {k: v for k, v in older.to_json().items() if k not in ("pipeline", "sink")}
    assert Request.from_json(fields) == older


def test_what_a_bitemporal_stream_knew_then(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    times = [(epoch, epoch * HOUR_US) for epoch in range(6)]
    lay_tape(lake, NAME, ["a"], times, (6, 5 * HOUR_US), time_type=PAIR)
    given = declarations(tmp_path)

    def plan(**asked: object) -> Plan:
        request = Request(NAME, "t", pipeline="places", sink="hours", **asked)  # type: ignore[arg-type]
        return make_plan(lake, given, request)

    known = plan(known_at=3, since=hour(1), until=hour(4))
    assert known.complete
    assert (known.time_type.names, known.computation.axes(known.inputs.tape.time_type)) == (
        ("event",),
        (1,),
    )
    assert hours(known.region) == (1, 4)
    assert known.reads.box == Box((None, -7 * HOUR_US), (4, 6 * HOUR_US))
    later = plan(known_at=5, since=hour(1), until=hour(4))
    assert later.region == known.region
    assert later.identity != known.identity
    # Without it what is known may still change, up to two hours before the watermark.
    assert not plan(since=hour(1), until=hour(4)).complete
    assert hours(plan(since=hour(1), until=hour(4), partial=True).region) == (1, 3)
    # What a copy has told of the same target is in two coordinates: it may lie anywhere.
    Books(lake, NAME, known.target).published("copy", (0,), Region(Box((0, 0), (9, HOUR_US))))
    covered = coverage.current(lake, known.target)
    assert len(covered) == 1
    assert covered[0].scope.overlaps(known.scope)
    assert published_overlap(known, covered).missing == 3
    assert published_overlap(plan(known_at=2, since=hour(1), until=hour(4)), covered).missing == 2
    assert published_overlap(known, covered).by_run == {}
    again = with_region(plan(known_at=3), known.region)
    assert again.reads.box.until == (4, 6 * HOUR_US)


def replay_of(**fields: object) -> Replay:
    return Replay(name="r", stream=NAME, target="t", **fields)  # type: ignore[arg-type]


def test_gaps_follow_the_grain_and_completeness(tmp_path: Path) -> None:
    place = Place(tmp_path, r=replay_of(pipeline="places", sink="hours"))
    actual = survey(place.lake, place.declarations, "r")
    states = [(interval.since[11:13], str(interval.state)) for interval in actual.intervals]
    # Until two hours before the frontier, which is at eight.
    assert states == [
        *((f"{n:02}", "gap") for n in range(6)),
        *((f"{n:02}", "incomplete") for n in range(6, 10)),
    ]
    assert actual.plan.request.pipeline == "places"
    assert actual.plan.request.sink == "hours"
    books = Books(place.lake, NAME, place.lake.table("t"))
    books.code, books.transform = actual.plan.computation.code, "places.hours"
    books.published("mine", None, Region(Box((0,), (2 * HOUR_US,))))
    books.transform = "places.pairs"
    books.published("other", None, Region(Box((2 * HOUR_US,), (3 * HOUR_US,))))
    again = survey(place.lake, place.declarations, "r")
    assert [str(interval.state) for interval in again.intervals][:4] == [
        "covered",
        "covered",
        "stale",
        "gap",
    ]


def read(tmp_path: Path, text: str) -> ProjectConfig:
    path = tmp_path / "streams.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, lake="/lake")


DECLARED = """\
streams:
  little:
    source: {format: kafka}
    workers: {by: key, columns: [a], count: 4}
    time: {domain: epoch}
pipelines:
  hourly: shop.pipelines:hourly
replays:
  again:
    stream: little
    target: there
    pipeline: hourly
    sink: hours
    mode: merge
"""


def test_pipelines_are_declared_by_reference_and_not_imported(tmp_path: Path) -> None:
    actual = read(tmp_path, DECLARED)
    assert actual.pipelines == {"hourly": "shop.pipelines:hourly"}
    again = actual.replay("again")
    assert (again.pipeline, again.sink, again.transform) == ("hourly", "hours", None)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("shop.pipelines:hourly", "shop.pipelines", 7, "names nothing in Python"),
        ("shop.pipelines:hourly", "{function: a:b}", 7, "must be text: package.module:function"),
        ("  hourly:", "  Hourly:", 7, "cannot name a pipeline"),
        ("pipeline: hourly", "pipeline: hurly", 12, "did you mean 'hourly'?"),
        ("    mode: merge", "    transform: daily", 9, "has a transform and a pipeline"),
        ("    pipeline: hourly\n", "", 9, "has a sink but no pipeline"),
        ("    mode: merge", "    follow: f\n    until: 2024-05-01", 9, "cannot have an until"),
        ("    mode: merge", "    follow: a b", 14, "cannot name a follow"),
    ],
)
def test_what_is_wrong_is_found_where_it_stands(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(tmp_path, DECLARED.replace(old, new))
    assert caught.value.code == "CAP-DECLARE"
    assert said in caught.value.message
    assert caught.value.fields["line"] == line
