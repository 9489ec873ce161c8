"""The list of all runs: as many, in the same order and of the same owners as their details say."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.reporting.formatting import short_target
from capstan.reporting.lists.run_search import SORTS, RunSearch
from capstan.reporting.run_heads import read_heads
from capstan.reporting.run_view import list_runs
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import EVENT, Books

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
STEPS = st.tuples(
    st.sampled_from(["t-00000001-1", "t-00000002-1"]),
    st.integers(1, 3),
    st.sampled_from(["intent", "intent", "done", "audited", "rejected", "failed", "rolled-back"]),
    st.sampled_from(["a", "b", "a+b"]),
    st.sampled_from([None, "", "r", "other", 7]),
    st.sampled_from([None, 1, 2]),
)


def steps_of(drawn: list[tuple[str, int, str, str, object, int | None]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number, (run, attempt, step, stream, replay, of) in enumerate(drawn):
        detail: dict[str, object] = {"region": "{}", "error": "CAP-X", "target_version": 1}
        if step == "intent":
            detail["request"] = {"mode": "replace", "replay": replay}
        if step == "done" and of is not None:
            detail["attempt"] = of
        rows.append(
            {
                "run": run, "attempt": attempt, "step": step, "stream": stream, "generation": 1,
                "target": "/t", "identity": run, "detail": json.dumps(detail),
                "at": BEGIN + timedelta(seconds=number),
            }
        )  # fmt: skip
    return rows


@pytest.fixture
def page() -> Iterator[None]:
    table_cache.enable()
    yield
    table_cache.disable()


@settings(max_examples=120, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=12))
def test_heads_are_those_of_the_runs_in_detail(
    drawn: list[tuple[str, int, str, str, object, int | None]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        books = Books(Lake.at(folder), "a", "/t")
        books.append("runs", *steps_of(drawn))
        heads, views = read_heads(books.lake), list_runs(books.lake)
        assert heads.names == [view.run for view in views]
        assert set(heads.owners) == {view.owner for view in views}
        for owner in heads.owners:
            assert heads.owned_by([owner]).names == [v.run for v in views if v.owner == owner]
        assert heads.views(1, 2) == views[1:3]
        for state in {"published", *heads.states, *(view.state for view in views)}:
            found = [view.run for view in views if view.state == state]
            assert heads.found(RunSearch(state=state)).names == found
        counted = Counter((view.stream, view.state) for view in views)
        assert {(stream, state): count for stream, state, count, _ in heads.counts} == counted
        assert {(stream, state): newest for stream, state, _, newest in heads.counts} == {
            (view.stream, view.state): view.at for view in reversed(views)
        }
        for stream in ("a", "b"):
            found = [view.run for view in views if stream in view.streams]
            assert heads.found(RunSearch(stream=stream)).names == found


def test_owners_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    books = Books(Lake.at(tmp_path), "a", "/t")
    drawn = [
        ("t-00000001-1", 1, "intent", "a", None, None),
        ("t-00000002-1", 1, "intent", "a 1", "b", None),
    ]
    books.append("runs", *steps_of(drawn))  # type: ignore[arg-type]
    heads = read_heads(books.lake)
    assert heads.owned_by([("a 1", "b")]).names == ["t-00000002-1"]
    assert heads.owned_by([("a", "1 b"), ("a", ""), ("a 1 b", None), ("a 1", None)]).names == []
    assert heads.owned_by([]).names == []
    assert len(read_heads(Lake.at(tmp_path / "empty"))) == 0


def test_a_page_parses_the_details_of_new_runs_and_of_those_it_shows(
    tmp_path: Path, page: None
) -> None:
    books, plain, parsed = Books(Lake.at(tmp_path), "a", "/t"), json.loads, list[str]()

    def loads(text: str) -> object:
        parsed.append(text)
        return plain(text)

    names = [f"t-{n:08}-1" for n in range(50)]
    steps = ("intent", "done")
    books.append(
        "runs", *steps_of([(name, 1, step, "a", "r", None) for name in names for step in steps])
    )
    counts = []
    for _ in range(3):
        with patch.object(json, "loads", loads):
            assert len(read_heads(books.lake).views(0, 5)) == 5
        counts.append(sum("region" in text for text in parsed))
        parsed.clear()
    [new] = steps_of([("t-00000099-1", 1, "intent", "a", "r", None)])
    books.append("runs", new | {"at": BEGIN + timedelta(days=1)})
    with patch.object(json, "loads", loads):
        assert read_heads(books.lake).views(0, 1)[0].run == "t-00000099-1"
    counts.append(sum("region" in text for text in parsed))
    assert counts == [100 + 10, 10, 10, 1 + 1]


@pytest.fixture
def books(tmp_path: Path) -> Books:
    """Runs of two streams into three tables, a day apart, in several states."""
    lake = Lake.at(tmp_path)
    for number, (stream, table, step) in enumerate(
        [
            ("flights", lake.table("by_day"), "done"),
            ("flights_eu", lake.table("by_day"), "failed"),
            ("flights+weather", lake.table("joined"), "done"),
            ("weather", "/elsewhere/By_Hour", "audited"),
        ]
    ):
        kept = Books(lake, stream, table)
        row = steps_of([(f"t-{number:08}-1", 1, step, stream, None, None)])[0]
        kept.append("runs", {**row, "target": table, "at": BEGIN + timedelta(days=number)})
    return kept


def numbers(books: Books, search: RunSearch) -> list[int]:
    return [int(name[2:10]) for name in read_heads(books.lake).found(search).names]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        (RunSearch(), [3, 2, 1, 0]),
        # A stream is that one, not each whose name begins alike.
        (RunSearch(stream="flights"), [2, 0]),
        (RunSearch(stream="weather", state="published"), [2]),
        (RunSearch(table="by_day"), [1, 0]),
        (RunSearch(table="/elsewhere/By_Hour"), [3]),
        (RunSearch(text="FLIGHTS_"), [1]),
        (RunSearch(text="by_h"), [3]),
        (RunSearch(text="00000002"), [2]),
        # No regular expression, and not the place of the lake.
        (RunSearch(text="."), []),
        (RunSearch(text="tables/"), []),
        (RunSearch(since=date(2024, 5, 2), until=date(2024, 5, 3)), [2, 1]),
        (RunSearch(until=date(2024, 5, 1)), [0]),
        (RunSearch(since=date(2024, 5, 2), until=date.max), [3, 2, 1]),
        (RunSearch(state="failed", stream="flights"), []),
        (RunSearch(sort="when"), [0, 1, 2, 3]),
        (RunSearch(sort="run"), [0, 1, 2, 3]),
        (RunSearch(sort="-run"), [3, 2, 1, 0]),
        # Of those that are alike, the newest first.
        (RunSearch(sort="table"), [3, 1, 0, 2]),
        (RunSearch(sort="-state"), [2, 0, 1, 3]),
        (RunSearch(sort="stream"), [0, 2, 1, 3]),
    ],
)
def test_a_search_finds_what_it_says(books: Books, search: RunSearch, expected: list[int]) -> None:
    assert numbers(books, search) == expected


def test_a_search_offers_what_there_is(books: Books) -> None:
    heads = read_heads(books.lake)
    assert heads.streams == ["flights", "flights_eu", "weather"]
    assert heads.tables == ["/elsewhere/By_Hour", "by_day", "joined"]
    assert heads.states == ["audited", "failed", "published"]
    names = ["t-00000003-1", "t-00000001-1", "t-00000009-1"]
    assert heads.named(names).names == names[:2]
    assert heads.named([]).names == []
    empty = read_heads(Lake.at(f"{books.lake.root}/nothing"))
    assert (empty.states, empty.tables, empty.streams) == ([], [], [])
    assert empty.found(RunSearch(text="x", stream="x", since=date(2024, 5, 1))).names == []


def test_pages_of_a_search_have_all_that_it_finds(books: Books) -> None:
    heads, search = read_heads(books.lake), RunSearch(sort="run", text="t-")
    pages = [heads.page(search, number, 3) for number in (1, 2, 3)]
    assert [[view.run for view in page.items] for page in pages] == [
        ["t-00000000-1", "t-00000001-1", "t-00000002-1"], ["t-00000003-1"], [],
    ]  # fmt: skip
    assert {(page.total, page.last) for page in pages} == {(4, 2)}
    assert pages[0].query(2) == "text=t-&sort=run&page=2"
    assert pages[1].query(1) == "text=t-&sort=run"
    assert heads.page(RunSearch(text="nothing"), 1, 3).last == 1


@pytest.mark.parametrize("column", SORTS)
def test_a_column_sorts_and_sorts_the_other_way_round(column: str) -> None:
    once = RunSearch(text="a&b", state="failed", sort="state" if column != "state" else "run")
    first = once.by(column)
    assert first.startswith("text=a%26b&state=failed")
    sort = "-when" if column == "when" else column
    # What is as usual is not said.
    assert ("sort=" in first) == (column != "when")
    second = RunSearch(sort=sort).by(column)
    assert second == f"sort={column if column == 'when' else f'-{column}'}"
    assert not RunSearch(sort=column).narrows
    assert once.narrows


def test_a_run_that_has_begun_is_stopped_once_its_claim_is_gone(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    kept = Books(lake, "a", lake.table("t"), _now=datetime.now(UTC))
    names = ["t-00000001-1", "t-00000002-1"]
    for name in names:
        kept.claimed(name, None, Region(Box.everything(EVENT)))
        kept.stepped(name, "intent", {"region": "{}"})
    assert read_heads(lake).states == ["begun"]
    kept.released(names[0])
    heads = read_heads(lake)
    for state, name in zip(("stopped", "begun"), names, strict=True):
        assert heads.found(RunSearch(state=state)).names == [name]
    assert [view.state for view in heads.views(0, 2)] == ["begun", "stopped"]


def test_a_table_that_has_moved_is_found_where_it_is(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path)
    kept = Books(lake, "a", "/before/tables/t")
    kept.stepped("t-00000001-1", "failed", {"error": "CAP-X"})
    moved = {"target": "/before/tables/t", "path": lake.table("t"), "table": "id", "name": None}
    kept.append("tables", moved)
    heads = read_heads(lake)
    [view] = heads.views(0, 1)
    assert heads.tables == [short_target(view.target, lake.root)] == ["t"]
