"""The list of all runs: as many, in the same order and of the same owners as their details say."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capstan.reporting.run_heads import read_heads
from capstan.reporting.run_view import list_runs
from capstan.storage.delta import table_cache
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import Books

BEGIN = datetime(2024, 5, 1, tzinfo=UTC)
STEPS = st.tuples(
    st.sampled_from(["t-00000001-1", "t-00000002-1"]),
    st.integers(1, 3),
    st.sampled_from(["intent", "intent", "done", "audited", "failed", "rolled-back"]),
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
def test_owners_are_those_of_the_runs_in_detail(
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
