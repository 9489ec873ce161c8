"""What a plan says of what stands already, and of workers that are missing; no JVM anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.config import ByColumn, ByKey, ProjectConfig
from capstan.core.times import Antichain, Box, Kind, Time, TimeType
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.preview import published_overlap, worker_gaps
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from capstan.storage.ledger.claims import Scope
from tests.support.jvmless_lake import Books, lay_tape
from tests.support.sample_streams import declared, little_stream
from tests.support.several_streams import REFERENCES

HOURS = 3_600_000_000
NAME = "little"
PAIR = TimeType.of(epoch=Kind.BIGINT, event=Kind.BIGINT)


@dataclass(frozen=True, slots=True)
class Told:
    """A lake with the tape of `little`, and ledgers of one target."""

    lake: Lake
    declarations: ProjectConfig

    def plan(self, **asked: object) -> Plan:
        return make_plan(self.lake, self.declarations, Request(NAME, "t", **asked))  # type: ignore[arg-type]

    @property
    def books(self) -> Books:
        return Books(self.lake, NAME, self.lake.table("t"))

    def covered(self, plan: Plan) -> list[coverage.Covered]:
        actual = coverage.current(self.lake, plan.target)
        return [item for item in actual if item.scope.overlaps(plan.scope)]


def told(root: Path) -> Told:
    """Workers a, b, c with a record an hour for ten hours; the frontier after eight."""
    lake = Lake.at(root)
    lay_tape(lake, NAME, ["a", "b", "c"], [(n * HOURS,) for n in range(10)], (8 * HOURS,))
    return Told(lake, declared(little_stream(root / "source")))


def hours(since: int | None, until: int | None) -> Region:
    bounds = [None if item is None else item * HOURS for item in (since, until)]
    return Region(Box((bounds[0],), (bounds[1],)))


def test_nothing_stands_of_a_target_that_is_not_there(tmp_path: Path) -> None:
    plan = told(tmp_path).plan()
    actual = published_overlap(plan, [])
    assert (actual.current, actual.stale, actual.missing) == (0, 0, 24)
    assert actual.by_run == {}


def test_the_run_that_wrote_a_cell_last_counts(tmp_path: Path) -> None:
    place = told(tmp_path)
    books = place.books
    books.published("first", (0, 1, 2), hours(0, 4))
    books.code, books.transform = "abc", "other"
    books.published("second", (1,), hours(2, 6))
    plan = place.plan()
    covered = place.covered(plan)
    actual = published_overlap(plan, covered)
    assert actual.by_run == {"first": 10, "second": 4}
    assert (actual.current, actual.stale, actual.missing) == (10, 4, 10)
    # Only what the plan plays is counted.
    part = place.plan(workers=("b",), until="1970-01-01T03:00:00Z")
    small = published_overlap(part, place.covered(part))
    assert (small.current, small.stale, small.missing) == (2, 1, 0)
    books.rolled_back("second", (1,), hours(2, 6))
    assert published_overlap(plan, place.covered(plan)).by_run == {"first": 12}


@pytest.mark.parametrize("stamps", [[], [[(0,), (HOURS,)]]])
def test_rows_by_workers_of_one_source_have_records_of_all_workers_of_others(
    tmp_path: Path, stamps: list[list[tuple[int]]]
) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(lake, "orders", ["a", "b"], [(0,)], None)
    lay_tape(lake, "payments", ["a", "b"], [(0,)], None, stamps=stamps)
    config = ProjectConfig(Path("streams.yaml"), {}, {}, {}, {}, REFERENCES)
    named = {"orders": "orders", "payments": "payments"}
    plan = make_plan(lake, config, Request.of_streams(named, "t", pipeline="paid_by_seller"))
    Books(lake, plan.request.stream, plan.target).published("first", (1,), hours(None, None))
    found = published_overlap(plan, coverage.current(lake, plan.target))
    assert found.by_run == {"first": 3 + 2 * len(stamps)}
    assert found.missing == 1


bounds = st.integers(0, 10)
runs = st.lists(
    st.tuples(bounds, bounds, st.sets(st.integers(0, 2), min_size=1), st.booleans()), max_size=4
)


@settings(max_examples=40, deadline=None)
@given(runs)
def test_every_cell_is_counted_once_as_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, published: Sequence[tuple[int, int, set[int], bool]]
) -> None:
    place = told(tmp_path_factory.mktemp("plan"))
    plan = place.plan()
    covered = [
        coverage.Covered(
            f"r{i}", 1, NAME,
            Scope(plan.target, tuple(sorted(workers)), hours(min(a, b), max(a, b))),
            "", "" if same else "else", 0, i,
        )
        for i, (a, b, workers, same) in enumerate(published)
    ]  # fmt: skip
    expected = {"current": 0, "stale": 0, "missing": 0}
    for worker in range(3):
        for hour in range(8):
            last = [
                item
                for item in covered
                if worker in (item.scope.workers or ())
                and item.scope.region.contains(Time((hour * HOURS,)))
            ]
            state = "missing" if not last else "stale" if last[-1].code else "current"
            expected[state] += 1
    actual = published_overlap(plan, covered)
    assert {name: getattr(actual, name) for name in expected} == expected


def test_partial_orders_are_counted_by_their_frontiers(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    times = [(epoch, event) for epoch in range(4) for event in range(4)]
    lay_tape(lake, NAME, ["a"], times, (4, 4), time_type=PAIR)
    place = Told(lake, declared(little_stream(tmp_path)))
    plan = place.plan(partial=True)
    played = Region(Box.everything(PAIR), Antichain.of([Time((2, 1))]))
    scope = Scope(plan.target, (0,), played)
    actual = published_overlap(plan, [coverage.Covered("r", 1, NAME, scope, "", "", 0, 0)])
    inside = sum(played.contains(Time(time)) and plan.region.contains(Time(time)) for time in times)
    assert 0 < inside < len(times)
    assert actual.current == inside


def test_workers_are_missing_in_four_ways(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    lay_tape(
        lake, NAME, ["a", "b", "late"], [(n * HOURS,) for n in range(10)], (8 * HOURS,),
        opened={"late": (6 * HOURS,)},
    )  # fmt: skip
    stream = little_stream(tmp_path, workers=ByColumn("place", labels=("a", "b", "never")))
    place = Told(lake, declared(stream))
    plan = place.plan(workers=("a", "late"), until="1970-01-01T05:00:00Z")
    played = [stream.content(plan.region) for stream in plan.inputs]
    actual = worker_gaps(plan, place.declarations, played)
    assert (actual.left_out, actual.silent, actual.not_on_tape) == (("b",), ("late",), ("never",))
    assert actual.behind == {}
    far = place.plan(workers=("a", "late"), until="1970-01-01T09:00:00Z")
    behind = worker_gaps(far, place.declarations, played).behind
    assert behind == {"a": (Time((8 * HOURS,)),), "late": (Time((8 * HOURS,)),)}
    by_key = declared(little_stream(tmp_path, workers=ByKey(("id",), 2)))
    assert worker_gaps(plan, by_key, played).not_on_tape == ("0", "1")
