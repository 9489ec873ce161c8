"""Targets that were moved or renamed keep their runs; copies and new tables do not get them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.replay.planning.planner import make_plan
from capstan.replay.planning.request import Request
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage, moved_tables
from capstan.storage.ledger.moved_tables import find_all_moved, find_moved
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.tables import append_rows, kept_changes_path, read_rows, stored_target
from tests.support.jvmless_lake import Books, lay_tape
from tests.support.sample_streams import NAME, declared, little_stream

ALL = Region(Box((None,), (None,)))
SCHEMA = arrow_writer.struct(n="long")


def make_table(path: str, run: RunId | None = None) -> str:
    """A Delta table, into which a run has published; returns its id."""
    arrow_writer.create_table(path, SCHEMA)
    if run is not None:
        arrow_writer.append(path, pa.table({"n": [1]}), txn=run.change(1))
    return str(delta.open_table(path).metadata().id)


def keep_changes(path: str, run: RunId) -> None:
    """What a run has kept beside a table."""
    schema = arrow_writer.struct(_capstan_run="string", n="long")
    arrow_writer.create_table(path, schema, partitions=("_capstan_run",))
    arrow_writer.append(path, pa.table({"_capstan_run": [f"{run.name}-1"], "n": [1]}))


def publish(lake: Lake, path: str, letter: str = "a") -> RunId:
    """A published run in the ledgers, and in its table."""
    run = RunId(letter * 32, 1, "t")
    make_table(path, run)
    Books(lake, NAME, path).published(run.name, [0], ALL, identity=run.identity)
    return run


def standing(lake: Lake, path: str) -> list[str]:
    return [entry.run for entry in coverage.current(lake, path)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path / "lake")


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_the_tables_of_a_lake_in_another_place_are_found(
    lake: Lake, tmp_path: Path, how: str
) -> None:
    run = publish(lake, lake.table("t"))
    other = publish(lake, lake.table("u"), "b")
    shutil.copytree(lake.root, tmp_path / "new")
    if how == "moved":
        shutil.rmtree(lake.root)
    new = Lake.at(tmp_path / "new")
    assert standing(new, new.table("t")) == []

    assert find_moved(new, new.table("t"))
    assert not find_moved(new, new.table("t"))

    assert standing(new, new.table("t")) == [run.name]
    assert standing(new, new.table("u")) == []
    assert find_all_moved(new) == (1 if how == "moved" else 0)
    assert find_moved(new, new.table("u")) is (how == "copied")
    assert standing(new, new.table("u")) == [other.name]
    assert stored_target(new, new.table("t")) == lake.table("t")
    kept = [kept_changes_path(item, item.table("t")) for item in (lake, new)]
    assert kept == [f"{lake.root}/kept/t", f"{new.root}/kept/t"]


def test_a_moved_lake_gives_the_same_runs_for_the_same_requests(lake: Lake, tmp_path: Path) -> None:
    lay_tape(lake, NAME, ["a"], [(0,)], (1,))
    run = publish(lake, lake.table("t"))
    declarations = declared(little_stream(tmp_path))
    request, follow = Request(NAME, "t"), Request(NAME, "t", follow="f")
    before = [make_plan(lake, declarations, item).identity for item in (request, follow)]
    (tmp_path / "lake").rename(tmp_path / "new")
    new = Lake.at(tmp_path / "new")
    find_moved(new, new.table("t"))
    assert [make_plan(new, declarations, item).identity for item in (request, follow)] == before
    assert standing(new, new.table("t")) == [run.name]


def test_a_moved_table_is_found_when_replayed_into(lake: Lake, tmp_path: Path) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    run = publish(lake, old)
    shutil.copytree(old, tmp_path / "copy")
    make_table(str(tmp_path / "other"))
    # A copy, another table and a path without one are not that table.
    for name in ("copy", "other", "nothing", "old"):
        assert not find_moved(lake, str(tmp_path / name))
    (tmp_path / "old").rename(new)
    assert not find_moved(lake, str(tmp_path / "other"))

    kept = kept_changes_path(lake, old)
    assert find_moved(lake, new)

    assert kept_changes_path(lake, new) == kept == lake.kept_changes(old)
    assert standing(lake, new) == [run.name]
    # A new table at its old path has none of its runs.
    make_table(old)
    assert standing(lake, old) == []
    assert not find_moved(lake, old)
    second = RunId("c" * 32, 1, "t")
    append_rows(lake, "runs", [{"run": second.name, "target": old, "step": "intent"}])
    assert [row["run"] for row in read_rows(lake, "runs", ("run",), target=old)] == [second.name]
    assert stored_target(lake, old) == f"{old};2"
    assert kept_changes_path(lake, old) != kept


@pytest.mark.parametrize("first", ["lake", "table"])
def test_a_table_that_moved_twice_keeps_its_changes(lake: Lake, tmp_path: Path, first: str) -> None:
    run = publish(lake, lake.table("a"))
    keep_changes(lake.kept_changes(lake.table("a")), run)

    def move_lake(before: Lake, name: str) -> Lake:
        Path(before.root).rename(tmp_path / name)
        return Lake.at(tmp_path / name)

    def rename(where: Lake, before: str, after: str) -> None:
        Path(where.table(before)).rename(where.table(after))
        assert find_moved(where, where.table(after))
        assert standing(where, where.table(after)) == [run.name]

    if first == "table":
        rename(lake, "a", "b")
        rename(lake, "b", "c")
        lake = move_lake(lake, "second")
        assert find_moved(lake, lake.table("c"))
    else:
        lake = move_lake(lake, "second")
        rename(lake, "a", "b")
        lake = move_lake(lake, "third")
        rename(lake, "b", "c")
    kept = kept_changes_path(lake, lake.table("c"))
    assert kept == f"{lake.root}/kept/a"
    # Another table under the first name has none of them, and keeps its own apart.
    other = publish(lake, lake.table("a"), "c")
    apart = kept_changes_path(lake, lake.table("a"))
    assert apart != kept
    keep_changes(apart, other)
    Path(lake.table("a")).rename(lake.table("d"))
    assert find_moved(lake, lake.table("d"))
    assert kept_changes_path(lake, lake.table("d")) == apart
    assert kept_changes_path(lake, lake.table("c")) == kept


class TestNames:
    """Tables of a catalog, as it tells their paths and ids."""

    def found(self, lake: Lake, name: str, path: str) -> None:
        table = str(delta.open_table(path).metadata().id)
        moved_tables._record_found(lake, name, path, table)

    def test_a_renamed_table_keeps_its_runs(self, lake: Lake, tmp_path: Path) -> None:
        first, second = str(tmp_path / "orders"), str(tmp_path / "sales")
        make_table(first)
        self.found(lake, "shop.orders", first)
        run = publish(lake, first)
        # A managed table moves with its name; an external one stays where it is.
        (tmp_path / "orders").rename(second)
        self.found(lake, "shop.sales", second)
        assert standing(lake, second) == [run.name]
        self.found(lake, "shop.sold", second)
        assert standing(lake, second) == [run.name]
        assert stored_target(lake, second) == first

    def test_a_table_by_path_keeps_its_runs_when_it_gets_a_name(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "orders")
        run = publish(lake, path)
        self.found(lake, "shop.orders", path)
        assert standing(lake, path) == [run.name]
        moved = str(tmp_path / "moved")
        (tmp_path / "orders").rename(moved)
        self.found(lake, "shop.orders", moved)
        assert standing(lake, moved) == [run.name]

    def test_another_table_under_the_name_has_no_runs_of_the_first(
        self, lake: Lake, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "orders")
        make_table(path)
        self.found(lake, "shop.orders", path)
        run = publish(lake, path)
        copy = str(tmp_path / "copy")
        shutil.copytree(path, copy)
        self.found(lake, "shop.copy", copy)
        assert standing(lake, copy) == []
        assert standing(lake, path) == [run.name]
        shutil.rmtree(path)
        make_table(path)
        self.found(lake, "shop.orders", path)
        assert standing(lake, path) == []
        assert stored_target(lake, path) == f"{path};2"
