"""What others have done to a target since it was published: told from its own log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from capstan.backfill.planner import BackfillMode, BackfillRequest, plan_replays
from capstan.backfill.survey import IntervalState, survey
from capstan.core.config import ProjectConfig, Replay
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.plan import Plan
from capstan.replay.target.already_published import find_equivalent_run
from capstan.replay.target.conflicts import require_no_clash
from capstan.replay.target.ownership import Ownership
from capstan.replay.target.standing import ForeignChange
from capstan.storage.delta import delta, table_cache
from capstan.storage.delta.delta import read_commit
from capstan.storage.delta.opened_table import OpenedTable
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered
from capstan.storage.ledger.foreign_commits import note_touched
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.tables import LedgerRow, read_rows
from tests.support.jvmless_lake import BY_DAY, FIRST, Books, lay_tape

DAY = 86_400_000_000
DECLARED = ProjectConfig(
    Path("x.yaml"),
    {},
    {"by_day": BY_DAY},
    {},
    {"days": Replay(name="days", stream="s", target="days", transform="by_day")},
)
ROWS = pa.schema([("_worker", pa.int32()), ("day", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def moment(day: float) -> datetime:
    return datetime(2024, 5, 1, tzinfo=UTC) + timedelta(days=day)


def rows(workers: Sequence[int], days: Sequence[float], n: int = 24) -> pa.Table:
    listed = [{"_worker": w, "day": moment(d), "n": n} for w in workers for d in days]
    return pa.Table.from_pylist(listed, schema=ROWS)


class Target:
    """A lake whose stream has two workers and three days, each day in files of its own."""

    def __init__(self, root: Path, parted: Sequence[str] = ("_worker",)) -> None:
        self.lake = Lake.at(root / "lake")
        hours = [(FIRST + hour * DAY // 24,) for hour in range(72)]
        lay_tape(self.lake, "s", "ab", hours, (FIRST + 3 * DAY,))
        self.path = self.lake.table("days")
        DeltaTable.create(self.path, ROWS, partition_by=list(parted))
        self.books = Books(self.lake, "s", self.path, "by_day", BY_DAY.code_hash)
        for day in range(3):
            self.write(rows([0, 1], [day]), {"run": f"day{day}", "publish": True})
            region = Region(Box((FIRST + day * DAY,), (FIRST + (day + 1) * DAY,)))
            self.books.published(f"day{day}", [0, 1], region)

    def write(self, rows: pa.Table, note: dict[str, object]) -> None:
        """Append rows as a run does."""
        reported = {"userMetadata": json.dumps({"capstan": note})}
        properties = CommitProperties(custom_metadata=reported)
        deltalake.write_deltalake(self.path, rows, mode="append", commit_properties=properties)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.path)

    def states(self) -> list[tuple[str, tuple[str, ...]]]:
        actual = survey(self.lake, DECLARED, "days").intervals
        return [(str(item.state), item.missing) for item in actual]

    @property
    def plan(self) -> Plan:
        return survey(self.lake, DECLARED, "days").plan

    def since(self) -> tuple[ForeignChange, ...]:
        """What a plan tells of the target."""
        owner = Ownership(self.plan)
        return owner.changes(owner.covered)

    def changes(self) -> list[str]:
        actual = survey(self.lake, DECLARED, "days").intervals
        return [name for item in actual for name in item.changes]


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


BOTH, COVERED = ("a", "b"), ("covered", ())
OTHERS: list[tuple[str, Callable[[Target], object], list[tuple[str, tuple[str, ...]]]]] = [
    (
        "delete",
        lambda t: t.table.delete("day >= '2024-05-03'"),
        [COVERED, COVERED, ("changed", BOTH)],
    ),
    (
        "delete of one worker",
        lambda t: t.table.delete("day >= '2024-05-02' AND _worker = 1"),
        [COVERED, ("changed", ("b",)), ("changed", ("b",))],
    ),
    (
        "update",
        lambda t: t.table.update({"n": "0"}, predicate="day = '2024-05-02'"),
        [COVERED, ("changed", BOTH), COVERED],
    ),
    (
        "merge",
        lambda t: (
            t.table.merge(
                rows([0], [1], 7), "t._worker = s._worker AND t.day = s.day", "s", "t"
            )
            .when_matched_update_all()
            .execute()
        ),
        [COVERED, ("changed", ("a",)), COVERED],
    ),
    (
        "append",
        lambda t: deltalake.write_deltalake(t.path, rows([1], [0.5]), mode="append"),
        [("changed", ("b",)), COVERED, COVERED],
    ),
    (
        "overwrite",
        lambda t: deltalake.write_deltalake(t.path, rows([0], [0]), mode="overwrite"),
        [("changed", BOTH)] * 3,
    ),
    (
        "restore",
        lambda t: t.table.restore(2),
        [COVERED, COVERED, ("changed", BOTH)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("act", "states"), [each[1:] for each in OTHERS], ids=[each[0] for each in OTHERS]
)
def test_what_others_have_touched_is_told_and_filled(
    target: Target, act: Callable[[Target], object], states: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert target.states() == [COVERED] * 3
    act(target)
    assert target.states() == states
    [named] = set(target.changes())
    assert named.startswith("version 4 (")
    assert list(dict.fromkeys(map(str, target.since()))) == [named]

    actual = survey(target.lake, DECLARED, "days")
    requests = plan_replays(actual, BackfillRequest("days"))
    assert sum(state == "changed" for state, _ in states) >= len(requests) > 0
    assert not plan_replays(actual, BackfillRequest("days", what=BackfillMode.FAILED))


@pytest.mark.parametrize(
    "act",
    [
        lambda t: t.table.optimize.compact(),
        lambda t: t.table.optimize.z_order(["n"]),
        lambda t: t.table.vacuum(0, dry_run=False, enforce_retention_duration=False),
        lambda t: t.table.alter.add_constraint({"some": "n > 0"}),
        lambda t: t.table.alter.set_table_properties({"delta.appendOnly": "false"}),
        lambda t: t.table.create_checkpoint(),
        lambda t: t.table.delete("n < 0"),
    ],
    ids=["compact", "z-order", "vacuum", "constraint", "properties", "checkpoint", "no row"],
)
def test_what_touches_no_row_changes_nothing(
    target: Target, act: Callable[[Target], object]
) -> None:
    act(target)
    assert target.states() == [COVERED] * 3
    assert target.since() == ()


def test_what_is_replayed_since_is_covered_again(target: Target) -> None:
    target.table.delete("day = '2024-05-02'")
    deltalake.write_deltalake(target.path, rows([0], [1]), mode="append")
    assert [state for state, _ in target.states()] == ["covered", "changed", "covered"]
    target.books._version = 5
    target.books.published("again", [0, 1], Region(Box((FIRST + DAY,), (FIRST + 2 * DAY,))))
    assert target.states() == [COVERED] * 3
    assert target.since() == ()


def test_commits_of_runs_are_known_by_their_note(target: Target) -> None:
    target.write(rows([0], [1]), {"run": "one", "fence": "one", "attempt": 1})
    assert target.states() == [COVERED] * 3


def test_where_nothing_was_covered_it_stays_a_gap(target: Target) -> None:
    target.books.rolled_back("day1", [0, 1], Region(Box((FIRST + DAY,), (FIRST + 2 * DAY,))))
    target.table.delete("day = '2024-05-02'")
    assert [state for state, _ in target.states()] == ["covered", "gap", "covered"]


def test_files_without_bounds_may_have_anything(tmp_path: Path) -> None:
    target = Target(tmp_path, parted=())
    table = DeltaTable(target.path)
    table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    deltalake.write_deltalake(target.path, rows([0], [1]), mode="append")
    assert target.states() == [("changed", BOTH)] * 3


def test_noted_foreign_commits_outlive_the_log(target: Target) -> None:
    target.table.delete("day = '2024-05-02'")
    assert note_touched(target.lake, target.path, 1) == 1
    assert note_touched(target.lake, target.path, 1) == 0
    reported = target.since()
    target.write(rows([0], [5]), {"run": "later"})
    target.table.create_checkpoint()
    for version in range(5):
        (Path(target.path) / "_delta_log" / f"{version:020}.json").unlink()
    assert target.states() == [COVERED, ("changed", BOTH), COVERED]
    assert target.since() == reported
    # What is done after the last look is told by the log.
    target.table.delete("day = '2024-05-03' AND _worker = 1")
    assert target.states() == [COVERED, ("changed", BOTH), ("changed", ("b",))]


def test_entries_that_were_noted_are_read_once(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.table.delete("day = '2024-05-02'")
    note_touched(target.lake, target.path, 1)
    read: list[int] = []

    def counting(path: str, version: int) -> Iterator[dict[str, Any]]:
        read.append(version)
        return read_commit(path, version)

    monkeypatch.setattr("capstan.storage.delta.delta.read_commit", counting)
    assert [state for state, _ in target.states()] == ["covered", "changed", "covered"]
    assert read == []


def test_what_was_noted_of_another_table_counts_for_nothing(target: Target) -> None:
    target.table.delete("day = '2024-05-02'")
    note_touched(target.lake, target.path, 1)
    shutil.rmtree(target.path)
    DeltaTable.create(target.path, ROWS, partition_by=["_worker"])
    for day in range(3):
        target.write(rows([0, 1], [day]), {"run": f"day{day}", "publish": True})
    assert target.states() == [COVERED] * 3


def test_a_run_has_published_into_the_table_of_that_time_alone(tmp_path: Path) -> None:
    run = RunId.named("days-00000001-1", "00000001", 1, "days")

    def has_published(table: str | None) -> bool:
        """Whether a table with the run's transaction has its rows, if it has covered another."""
        target = Target(tmp_path / str(table))
        own = delta.identity_of(target.path) if table == "own" else table
        txn = run.change(1)
        done = CommitProperties(app_transactions=[Transaction(txn.app, txn.version)])
        empty = rows([], [])
        assert not Ownership(target.plan).has_published(run)
        deltalake.write_deltalake(target.path, empty, mode="append", commit_properties=done)
        everything = Scope(target.path, (0, 1), Region(Box((None,), (None,))))
        covered = Covered(run.name, 1, "s", everything, "", "", 0, 4, table=own or "")
        if table is not None:
            coverage.write_covered(
                target.lake, [covered], target.plan.time_type, coverage.PUBLISHED
            )
        return Ownership(target.plan).has_published(run)

    assert has_published("own")
    assert has_published("")  # Of an older row, the table is not known.
    assert has_published(None)  # Nothing is recorded yet.
    assert not has_published("another")


def test_each_ledger_is_read_once_for_all_that_is_asked(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.table.delete("day = '2024-05-02'")
    owner, read = Ownership(target.plan), Counter[str]()

    def counting(lake: Lake, ledger: str, *args: object, **equal: object) -> list[LedgerRow]:
        read[ledger] += 1
        return read_rows(lake, ledger, *args, **equal)  # type: ignore[arg-type]

    for reader in (coverage, runs):
        monkeypatch.setattr(reader, "read_rows", counting)
    # This process has asked for the coverage before.
    monkeypatch.setattr(table_cache, "_few", table_cache.VersionedCache(64))
    require_no_clash(owner)
    assert find_equivalent_run(owner) is None
    assert owner.covering_run is None
    assert owner.is_disturbed("day1")
    assert len(owner.regions) == 5
    assert {change.scope.workers for change in owner.changes(owner.covered)} == {(0,), (1,)}
    assert read == {"coverage": 1, "runs": 1}
    # A publish after the first look is one that only another look knows.
    target.books.published("day3", [0, 1], Region(Box((FIRST,), (FIRST + DAY,))))
    assert owner.publish_of("day3") is None
    assert Ownership(target.plan).publish_of("day3") is not None


def test_the_target_is_opened_once_for_all_that_is_asked(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, opened, open_table = Ownership(target.plan), Counter[str](), delta.open_table
    published = [RunId.named(entry.run, "x", 1, "days") for entry in owner.covered]
    owner = Ownership(owner.plan)

    def counting(path: str, version: int | None = None) -> OpenedTable:
        opened[path] += 1
        return open_table(path, version)

    monkeypatch.setattr(delta, "open_table", counting)
    for run in published:
        owner.has_published(run)
    assert owner.covered
    assert owner.has_only_own(owner.plan.reach)
    assert opened[target.path] == 1


def test_many_kinds_of_files_are_noted_as_any(target: Target) -> None:
    days = [day / 100 for day in range(65)]
    for day in days:
        deltalake.write_deltalake(target.path, rows([0], [day]), mode="append")
    target.table.delete("day < '2024-05-02'")
    note_touched(target.lake, target.path, 1)
    assert target.since()[-1].scope.region == Region(Box((None,), (None,)))


def test_an_entry_that_is_gone_from_the_log_tells_nothing(target: Target) -> None:
    target.table.delete("day = '2024-05-02'")
    target.table.create_checkpoint()
    for version in range(4):
        (Path(target.path) / "_delta_log" / f"{version:020}.json").unlink()
    # Of what was removed only the version before could tell where it lay.
    assert {state for state, _ in target.states()} == {str(IntervalState.CHANGED)}


@pytest.mark.parametrize("lacking", ["_worker", "day", None])
def test_rows_without_worker_or_time_are_not_taken_for_own(tmp_path, lacking):
    """They lie in a file with rows of a run, whose bounds do not tell of them."""
    target = Target(tmp_path)
    own = rows([0], [1]).to_pylist()
    beside = [] if lacking is None else [{**own[0], lacking: None}]
    target.write(pa.Table.from_pylist([*own, *beside], schema=ROWS), {"run": "x", "publish": True})
    owner = Ownership(target.plan)
    assert owner.has_only_own(owner.plan.reach) is (lacking is None)
    everywhere = Scope(target.path, None, Region(Box.everything(owner.plan.time_type)))
    assert owner.has_only_own(everywhere) is (lacking is None)
