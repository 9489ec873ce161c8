"""The runs whose changes count in a table that merges by sequence; no JVM anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction
from hypothesis import given
from hypothesis import strategies as st

from capstan.core.config import Mode, ProjectConfig
from capstan.core.times import Antichain, Box, Time
from capstan.core.times.region import Region
from capstan.errors import RangeLockedError
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.published_changes import (
    KeptChanges,
    in_effect,
    partly_replaced,
    published_changes,
)
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from tests.support.jvmless_lake import Books, intent_json, lay_tape

NOTHING_DECLARED = ProjectConfig(Path("x.yaml"), {}, {}, {}, {})
ALWAYS = Region(Box((None,), (None,)))
OLD, NEW = ("old", None), ("new", None)


def test_a_publish_recorded_during_the_look_is_refused_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was cut off after its commit, and another process writes its rows of the ledgers."""
    lake = Lake.at(tmp_path / "lake")
    lay_tape(lake, "s", "ab", [(0,)], None)
    request = Request("s", "t", mode=Mode.MERGE, keys=("id",), sequence_by=("n",))
    plan = make_plan(lake, NOTHING_DECLARED, request)
    run = RunId.named("t-00000001-1", "00000001", 1, plan.target)
    note = {"capstan": {"run": run.name, "attempt": 1, "publish": True}}
    txn = run.change(1)
    commit = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(note)},
        app_transactions=[Transaction(txn.app, txn.version)],
    )
    deltalake.write_deltalake(plan.target, pa.table({"id": [1]}), commit_properties=commit)
    books = Books(lake, "s", plan.target)
    books.stepped(run.name, "intent", intent_json(request, []), identity=run.identity)
    left = [True]

    def recording_after(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*args: object, **equal: object) -> object:
            result = read(*args, **equal)
            if left and left.pop():
                books._cover(run.name, [0, 1], ALWAYS, "published")
                done = {"attempt": 1, "target_version": 0}
                books.stepped(run.name, "done", done, identity=run.identity)
            return result

        return reading

    monkeypatch.setattr(coverage, "recorded_at", recording_after(coverage.recorded_at))
    monkeypatch.setattr(runs, "read_histories", recording_after(runs.read_histories))
    with pytest.raises(RangeLockedError, match=r"^CAP-CONFLICT: run t-00000001-1 has published "):
        published_changes(Ownership(plan))
    [changes] = published_changes(Ownership(plan))
    assert (changes.run, changes.scope.workers) == (run.name, (0, 1))


def changes(
    name: str,
    since: int | None,
    until: int | None,
    workers: set[int] | None = None,
    code: tuple[str, str | None] = OLD,
) -> KeptChanges:
    region = Region(Box((since,), (until,)))
    scope = Scope("t", None if workers is None else tuple(workers), region)
    return KeptChanges(name, name, scope, code)


def names(*published: KeptChanges) -> list[str]:
    return [item.name for item in in_effect(published)]


def test_disjoint_runs_count_side_by_side() -> None:
    assert names(changes("a", 0, 5), changes("b", 5, 9), changes("c", 3, 7)) == ["a", "b", "c"]
    assert names(changes("a", 0, 5, {1}), changes("b", 0, 5, {2})) == ["a", "b"]


def test_a_run_over_all_of_a_range_takes_the_place_of_its_run() -> None:
    assert names(changes("a", 2, 5, {1}), changes("b", 0, 5, {1, 2})) == ["b"]
    assert names(changes("a", 2, 5, {1}), changes("b", None, None)) == ["b"]
    # The earlier one may have had workers that the later one did not replay.
    assert names(changes("a", 2, 5), changes("b", 0, 5, {1, 2})) == ["a", "b"]


def test_an_older_run_does_not_take_the_place_of_a_later_one() -> None:
    assert names(changes("all", 0, 9), changes("part", 2, 5)) == ["all", "part"]


def test_partial_orders_replace_only_included_regions() -> None:
    box = Box((0, 0), (9, 9))
    below = Region(box, below=Antichain.of([Time((3, 3))]))
    whole = Region(box)

    assert whole.includes(below)
    assert below.includes(below)
    assert not below.includes(whole)
    assert not Region(box, below=Antichain.of([Time((4, 4))])).includes(below)
    assert not Region(Box((1, 0), (9, 9))).includes(whole)


BOUNDS = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted)
RUNS = st.lists(st.tuples(BOUNDS, st.sets(st.integers(0, 2), min_size=1)), max_size=6)


@given(RUNS)
def test_each_record_of_a_published_range_stays_covered(
    runs: list[tuple[list[int], set[int]]],
) -> None:
    published = [changes(str(n), *bounds, workers) for n, (bounds, workers) in enumerate(runs)]

    def records(of: list[KeptChanges]) -> set[tuple[int, int]]:
        return {
            (worker, time)
            for item in of
            for worker in item.scope.workers or ()
            for time in range(7)
            if item.scope.region.contains(Time((time,)))
        }

    counting = list(in_effect(published))

    assert records(counting) == records(published)
    assert counting == [item for item in published if item in counting]
    assert not published or counting[-1] == published[-1]


@pytest.mark.parametrize(
    ("new", "refused"),
    [
        (changes("new", 0, 9, code=NEW), None),
        (changes("new", 3, 9, code=NEW), "a"),
        (changes("new", 3, 9, code=OLD), None),
        (changes("new", 5, 9, code=NEW), None),
        (changes("new", 3, 9, {2}, NEW), "a"),
    ],
)
def test_other_code_replaces_whole_runs_only(new: KeptChanges, refused: str | None) -> None:
    other = partly_replaced(new, [changes("a", 0, 5)])

    assert (other.name if other else None) == refused
