"""What of a replay stands already: at an earlier cut, or as rows that an append would double."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.core.config import Mode, ProjectConfig, Replay, Transform
from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.preview import preview
from capstan.replay.target.already_published import find_equivalent_run
from capstan.replay.target.conflicts import require_no_clash
from capstan.replay.target.ownership import Ownership
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books, go_on, lay_tape

HOUR = 3_600_000_000
PAIR = TimeType.of(epoch=Kind.BIGINT, event=Kind.BIGINT)
MIXED = Transform(name="mixed", sql="SELECT count(*) AS n FROM records")
SUM = Transform(
    name="sum",
    sql="SELECT _worker, _time.event AS hour, count(*) AS n FROM records GROUP BY ALL",
    time="hour",
    worker="_worker",
    grain=timedelta(hours=1),
)
DECLARED = ProjectConfig(
    Path("x.yaml"),
    {},
    {"mixed": MIXED, "sum": SUM},
    {},
    {
        name: Replay(name=name, stream="s", target="t", mode=Mode.APPEND, transform=transform)
        for name, transform in (("added", None), ("counted", "mixed"))
    },
)
BESIDE = pa.schema(
    [
        ("worker", pa.int32()),
        ("batch", pa.int64()),
        ("time", pa.struct([("event", pa.timestamp("us", "UTC"))])),
        ("reason", pa.string()),
    ]
)
"""What is read of `records` and `late` without a JVM; no rows of them."""
DAY = {"since": "1970-01-01T02:00:00Z", "until": "1970-01-01T04:00:00Z"}


@dataclass(frozen=True, slots=True)
class Told:
    """A lake with stream `s`, workers a and b, a record an hour for six hours and then more."""

    lake: Lake

    def plan(self, **asked: object) -> Plan:
        return make_plan(self.lake, DECLARED, self.request(**asked))

    def request(self, **asked: object) -> Request:
        return Request("s", "t", **{**DAY, **asked})  # type: ignore[arg-type]

    @property
    def books(self) -> Books:
        return Books(self.lake, "s", self.lake.table("t"))

    def published(self, run: str, plan: Plan) -> None:
        """The run of a plan, which has published."""
        books = replace(self.books, transform=plan.computation.name, code=plan.computation.code)
        mode, kept, cut = str(plan.request.mode), plan.scope.region, plan.inputs.cut.commit
        reported = {"mode": mode, "kept": kept, "identity": plan.identity, "cut": cut}
        books.published(run, plan.scope.workers, plan.region, **reported)  # type: ignore[arg-type]

    def stood(self, **asked: object) -> str | None:
        actual = find_equivalent_run(Ownership(self.plan(**asked)))
        return None if actual is None else actual.last.run


@pytest.fixture
def told(tmp_path: Path) -> Told:
    lake = Lake.at(tmp_path)
    lay_tape(lake, "s", "ab", [(n * HOUR,) for n in range(6)], (6 * HOUR,))
    for path in (lake.stream("s").records, lake.stream("s").late):
        deltalake.DeltaTable.create(path, BESIDE)
    return Told(lake)


def more(told: Told) -> None:
    go_on(told.lake, "s", [(7 * HOUR,)], (8 * HOUR,))


@pytest.mark.parametrize("mode", Mode)
def test_a_complete_range_stands_whatever_is_captured_after_it(told: Told, mode: Mode) -> None:
    requested = {"mode": mode, "keys": ("id",)}
    told.published("first", told.plan(**requested))
    assert told.stood(**requested) is None  # At the same cut it is the run itself.
    more(told)
    assert told.plan(**requested).identity != told.plan(**requested, as_of=0).identity
    assert told.stood(**requested) == "first"
    assert preview(told.lake, DECLARED, told.request(**requested)).equivalent == "first"


@pytest.mark.parametrize(
    "other",
    [
        {"since": "1970-01-01T03:00:00Z"},
        {"workers": ("a",)},
        {"mode": Mode.APPEND},
        {"transform": "sum"},
        {"until": None},
        {"follow": "f", "until": None},
    ],
)
def test_another_replay_is_not_stood_for(told: Told, other: dict[str, object]) -> None:
    told.published("first", told.plan())
    more(told)
    assert told.stood() == "first"
    assert told.stood(**other) is None


def test_other_code_does_not_stand_for_todays(told: Told) -> None:
    plan = told.plan(transform="sum")
    told.published("first", replace(plan, computation=replace(plan.computation, code="f00")))
    more(told)
    assert told.stood(transform="sum") is None
    told.published("second", plan)
    assert told.stood(transform="sum") == "second"


def test_what_was_rolled_back_does_not_stand(told: Told) -> None:
    plan = told.plan()
    told.published("first", plan)
    more(told)
    books = told.books
    books.rolled_back("first", plan.scope.workers, plan.region)
    assert told.stood() is None


def test_a_range_that_was_not_complete_then_does_not_stand(told: Told) -> None:
    end = {"until": "1970-01-01T07:00:00Z"}
    told.published("part", told.plan(**end, partial=True))
    more(told)
    assert told.plan(**end).complete
    assert told.stood(**end) is None
    assert told.stood(**end, partial=True) is None


def test_what_the_protocol_forbids_is_seen_all_the_same(told: Told) -> None:
    """A record among the complete times, which no sound recording has."""
    told.published("first", told.plan())
    go_on(told.lake, "s", [(3 * HOUR,)], (8 * HOUR,))
    assert told.stood() is None


def test_what_was_known_at_an_epoch_stands(tmp_path: Path) -> None:
    """Times in two coordinates: the region has the frontier of its cut, and is the same set."""
    reported = Told(Lake.at(tmp_path))
    lay_tape(reported.lake, "s", "ab", [(0, 1), (0, 2), (1, 1)], (2, 0), time_type=PAIR)
    requested = {"since": "event=1", "until": "event=3", "known_at": 1}
    reported.published("first", reported.plan(**requested))
    go_on(reported.lake, "s", [(2, 1)], (3, 0))
    assert reported.plan(**requested).region != reported.plan(**requested, as_of=0).region
    assert reported.stood(**requested) == "first"
    assert reported.stood(**{**requested, "known_at": 2}) is None
    # Without an epoch it never completes: what stands of it are the times of back then.
    always = {**requested, "known_at": None, "partial": True}
    reported.published("open", reported.plan(**always))
    go_on(reported.lake, "s", [], (4, 0))
    assert (
        reported.plan(**always).scope.region.box
        == reported.plan(**always, as_of=1).scope.region.box
    )
    assert reported.stood(**always) is None


def refused(
    told: Told, besides: Collection[str] = (), mode: Mode = Mode.APPEND, **asked: object
) -> str | None:
    return clash(told.plan(mode=mode, **asked), besides)


def clash(plan: Plan, besides: Collection[str] = ()) -> str | None:
    """The run whose rows are in a plan's way, if there is one."""
    try:
        require_no_clash(Ownership(plan), besides)
    except InvalidRequestError as error:
        mode = plan.request.mode
        assert error.code == {Mode.APPEND: "CAP-APPEND", Mode.MERGE: "CAP-ORDER"}[mode]
        return str(error.fields["run"])
    return None


@pytest.mark.parametrize("replay", ["added", None])
def test_no_row_is_appended_twice(told: Told, replay: str | None) -> None:
    told.published("first", told.plan(mode=Mode.APPEND, workers=("a",)))
    late = "1970-01-01T04:00:00Z"
    assert refused(told, replay=replay) == "first"
    assert refused(told, replay=replay, until="1970-01-01T03:00:00Z") == "first"
    assert refused(told, replay=replay, workers=("b",)) is None
    assert refused(told, replay=replay, since=late, until="1970-01-01T05:00:00Z") is None
    # What is its own is no obstacle; what another transform makes is something else.
    assert refused(told, ["first"], replay=replay) is None
    assert refused(told, replay=replay, transform="sum") is None
    with pytest.raises(
        InvalidRequestError, match=r"^CAP-APPEND: run first has already written rows of this range "
    ):
        preview(told.lake, DECLARED, told.request(mode=Mode.APPEND, replay=replay))


def merged(told: Told, run: str, **asked: object) -> None:
    told.published(run, told.plan(mode=Mode.MERGE, keys=("id",), **asked))


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ({"until": "1970-01-01T03:00:00Z"}, True),
        ({"since": None, "until": "1970-01-01T02:00:00Z"}, True),
        ({"workers": ("b",), "until": "1970-01-01T03:00:00Z"}, True),
        ({"since": None}, False),
        ({"since": "1970-01-01T03:00:00Z"}, False),
        ({"since": "1970-01-01T04:00:00Z", "until": None}, False),
        ({"until": "1970-01-01T03:00:00Z", "transform": "sum"}, False),
    ],
)
def test_nothing_is_merged_over_newer_rows(
    told: Told, asked: dict[str, object], *, wrong: bool
) -> None:
    merged(told, "newer", workers=("a",))
    keyed = {"keys": ("id",), **asked}
    assert refused(told, mode=Mode.MERGE, **keyed) == ("newer" if wrong else None)
    assert refused(told, ["newer"], mode=Mode.MERGE, **keyed) is None


def test_workers_whose_keys_are_apart_are_merged_in_any_order(told: Told) -> None:
    keyed = {"transform": "sum", "keys": ("_worker", "hour"), "mode": Mode.MERGE}
    told.published("newer", told.plan(**keyed, workers=("a",)))
    earlier = "1970-01-01T03:00:00Z"
    assert refused(told, **keyed, workers=("a",), until=earlier) == "newer"
    assert refused(told, **keyed, workers=("b",), until=earlier) is None


def test_older_knowledge_is_not_merged_over_newer(told: Told) -> None:
    before = told.plan().inputs.cut.commit
    go_on(told.lake, "s", [(8 * HOUR,)], (9 * HOUR,))
    merged(told, "newer", until=None)
    assert refused(told, mode=Mode.MERGE, keys=("id",), until=None, as_of=before) == "newer"
    assert refused(told, mode=Mode.MERGE, keys=("id",), until=None) is None


def test_a_followed_replay_appends_beside_its_own_runs_alone(told: Told) -> None:
    plan = told.plan(follow="f", since=None, until=None, mode=Mode.APPEND)
    told.published("own", plan)
    assert clash(plan) is None
    told.published("first", told.plan(mode=Mode.APPEND))
    assert clash(plan) == "first"


def test_where_the_target_keeps_no_time_what_was_played_counts(told: Told) -> None:
    requested = {"transform": "mixed", "replay": "counted"}
    told.published("first", told.plan(**requested, mode=Mode.APPEND))
    assert told.plan(**requested, mode=Mode.APPEND).layout.time is None
    assert refused(told, **requested) == "first"
    after = {"since": "1970-01-01T04:00:00Z", "until": "1970-01-01T05:00:00Z"}
    assert refused(told, **requested, **after) is None


def test_rows_of_other_streams_are_not_doubled(told: Told) -> None:
    scope = Region(Box((None,), (None,)))
    Books(told.lake, "other", told.lake.table("t")).published("theirs", (0, 1), scope)
    assert refused(told, replay="added") is None
    told.books.published("ours", (0, 1), scope)
    assert refused(told, replay="added") == "ours"
