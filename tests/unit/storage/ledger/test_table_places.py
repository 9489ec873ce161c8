"""Where the tables are that ledgers name by an earlier path."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from capstan.core.config.names import normalised
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, coverage, runs
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from capstan.storage.ledger.runs import Step
from capstan.storage.ledger.table_places import Place, Places
from capstan.storage.ledger.tables import append_rows, read_rows, stored_target
from tests.support.jvmless_lake import Books

if TYPE_CHECKING:
    from pathlib import Path

ALL = Region(Box((None,), (None,)))


def test_without_places_a_table_is_where_the_ledgers_say() -> None:
    places = Places()
    assert (places.path_of("/a;2"), places.target_of("/a")) == ("/a;2", "/a")
    assert not places


def test_a_table_moved_back_keeps_its_ledger_name() -> None:
    moves = [Place("/a", "/b", "I"), Place("/a", "/c", "I"), Place("/a", "/a", "I")]
    for count, path in ((1, "/b"), (2, "/c"), (3, "/a")):
        places = Places(moves[:count])
        assert (places.path_of("/a"), places.target_of(path)) == (path, "/a")
    assert Places(moves[:2]).target_of("/b") == "/b"


def test_a_new_table_at_an_old_path_has_its_own_name() -> None:
    moved = Place("/a", "/b", "I")
    places = Places([moved])
    assert places.target_of("/a") == "/a;2"
    assert places.path_of("/a;2") == "/a"
    again = Places([moved, Place("/a;2", "/c", "J")])
    assert (again.target_of("/a"), again.target_of("/c")) == ("/a;3", "/a;2")
    assert [again.path_of(target) for target in ("/a", "/a;2", "/a;3")] == ["/b", "/c", "/a"]


def test_of_two_tables_at_one_path_the_later_one_is_there() -> None:
    first, second = Place("/a", "/a", "I", "s.t"), Place("/a;2", "/a", "J", "s.t")
    places = Places([first, second])
    assert places.target_of("/a") == "/a;2"
    assert places.at("/a") == places.named("s.t") == second
    assert places.of_table("I") == [first]
    assert (places.named(""), places.named("s.u"), places.at("/b")) == (None, None, None)


def test_one_table_has_one_normalised_name() -> None:
    names = ("Shop.Orders", "`shop`.orders", "spark_catalog.shop.`Orders`")
    assert {normalised(name) for name in names} == {"shop.orders"}
    assert normalised("main.shop.orders") == "main.shop.orders"


def test_ledgers_are_read_and_written_by_the_present_path(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    before, after = str(tmp_path / "before"), str(tmp_path / "after")
    books = Books(lake, "little", before)
    books.published("before-12345678-1", [0], ALL, identity="1" * 32)
    books.append(
        "runs",
        {"run": "before-12345678-1", "step": "done", "identity": "1" * 32, "generation": 1,
         "attempt": 1, "stream": "little", "target": before,
         "detail": json.dumps({"target_path": before, "certificate": {"target_path": before}})},
    )  # fmt: skip
    assert [entry.run for entry in coverage.current(lake, before)] == ["before-12345678-1"]
    (tmp_path / "before").rename(tmp_path / "after")
    assert coverage.current(lake, after) == []

    append_rows(lake, "tables", [asdict(Place(before, after, "I"))])

    [entry] = coverage.current(lake, after)
    assert entry.scope == Scope(after, (0,), ALL)
    assert coverage.current(lake, before) == []
    history = runs.read_history(lake, "before-12345678-1")
    assert {row.target for row in history.rows} == {after}
    last = history.last.detail
    assert last == {"target_path": after, "certificate": {"target_path": after}}
    # The run keeps its name, and its transactions.
    assert history.run_id == RunId("1" * 32, 1, "before")

    assert claims.claim(lake, RunId("2" * 32, 1, "after"), "little", Scope(after, None, ALL)) == 1
    assert [claim.scope.target for claim in claims.active(lake, after)] == [after]
    runs.write_step(lake, history.run_id, 2, Step.FAILED, stream="little", target=after, detail={})
    stored = pa.table(DeltaTable(lake.ledger("runs")).to_pyarrow_table())
    assert set(stored["target"].to_pylist()) == {before}
    stored = pa.table(DeltaTable(lake.ledger("claims")).to_pyarrow_table())
    assert set(stored["target"].to_pylist()) == {before}
    assert {row["target"] for row in read_rows(lake, "claims", target=(after, None))} == {after}
    assert stored_target(lake, after) == before
