"""What is staged and not published: what is kept, what is cleared away, and never what waits."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capstan.cli import main
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.maintenance.cleanup import clear_staging
from capstan.replay.execution import staging
from capstan.replay.execution.approval import waiting
from capstan.replay.execution.staging import KEEP, Why, clear_staged, list_staged
from capstan.storage.lake import Lake, children
from capstan.storage.ledger.claims import LEASE
from capstan.storage.ledger.runs import History, Row, Step
from tests.support.jvmless_lake import Books

WROTE = datetime(2024, 1, 1, tzinfo=UTC)
"""About when `Books` writes."""
LATER = WROTE + KEEP + timedelta(days=1)
STEPS = {
    "waits": ("intent", "audited"),
    "approved": ("intent", "audited", "approved"),
    "rejected": ("intent", "audited", "rejected"),
    "failed": ("intent", "failed"),
    "begun": ("intent",),
}
BECOME = {"waits": Why.WAITS, "approved": Why.WAITS, "rejected": Why.REJECTED,
          "failed": Why.FAILED, "begun": Why.LEFT}  # fmt: skip
RUNS = {name: f"t-{number:08x}-1" for number, name in enumerate(STEPS)}


def stage(lake: Lake, name: str) -> None:
    folder = Path(lake.staging(name)) / "_delta_log"
    folder.mkdir(parents=True)
    (folder / "00000000000000000000.json").write_text("{}\n{}", encoding="utf-8")


@pytest.fixture
def lake(tmp_path) -> Lake:
    """A lake where runs have staged, and became what their names say."""
    lake = Lake.at(tmp_path / "lake")
    books = Books(lake, "little", lake.table("t"))
    for name, steps in STEPS.items():
        books.claimed(RUNS[name], None, Region(Box((0,), (1,))))
        for step in steps:
            books.stepped(RUNS[name], step, {"staging": "x"})
        stage(lake, f"{RUNS[name]}-1")
    stage(lake, "t-ffffffff-1-1")
    stage(lake, "nonsense")
    return lake


def test_each_is_what_became_of_its_attempt(lake: Lake) -> None:
    actual = {item.name: item for item in list_staged(lake, LATER)}
    assert {name: item.why for name, item in actual.items()} == {
        **{f"{RUNS[name]}-1": why for name, why in BECOME.items()},
        "t-ffffffff-1-1": Why.UNKNOWN,
        "nonsense": Why.UNKNOWN,
    }
    assert {item.bytes for item in actual.values()} == {5}
    assert actual["nonsense"].at is None


def test_nothing_is_over_before_its_time(lake: Lake) -> None:
    early = WROTE + KEEP - timedelta(seconds=1)
    assert clear_staged(lake, list_staged(lake, early), early, KEEP) == []
    # Whether an attempt that has only begun is still at work, nobody knows before its claim ends.
    soon = WROTE + LEASE - timedelta(minutes=5)
    actual = {item.run: item.why for item in list_staged(lake, soon)}
    assert actual[RUNS["begun"]] is Why.WORKS
    cleared = clear_staged(lake, list_staged(lake, soon), soon, timedelta())
    assert cleared == [f"{RUNS[name]}-1" for name in ("rejected", "failed")]


def test_what_is_over_is_cleared_away_once(lake: Lake) -> None:
    over = sorted(f"{RUNS[name]}-1" for name in ("rejected", "failed", "begun"))
    before = set(children(lake.staging("")))
    assert clear_staged(lake, list_staged(lake, LATER), LATER, KEEP) == over
    assert set(children(lake.staging(""))) == before - set(over)
    assert clear_staged(lake, list_staged(lake, LATER), LATER, KEEP) == []


def test_maintenance_keeps_it_as_long_as_it_is_told(lake: Lake) -> None:
    assert clear_staging(lake, LATER, KEEP + timedelta(days=2)) == []
    early = WROTE + timedelta(days=3)
    assert clear_staging(lake, early) == []
    over = sorted(f"{RUNS[name]}-1" for name in ("rejected", "failed", "begun"))
    assert clear_staging(lake, early, timedelta(days=2)) == over


def test_an_attempt_that_was_taken_over_waits_no_more(lake: Lake) -> None:
    books = Books(lake, "little", lake.table("t"), _now=WROTE + timedelta(hours=1))
    books.stepped(RUNS["waits"], "intent", {}, attempt=2)
    stage(lake, f"{RUNS['waits']}-2")
    actual = {item.name: item.why for item in list_staged(lake, LATER)}
    assert actual[f"{RUNS['waits']}-1"] is Why.LEFT
    assert actual[f"{RUNS['waits']}-2"] is Why.LEFT
    books.stepped(RUNS["waits"], "audited", {"staging": "x"}, attempt=2)
    actual = {item.name: item.why for item in list_staged(lake, LATER)}
    assert actual[f"{RUNS['waits']}-2"] is Why.WAITS
    # What waits is the other attempt's output.
    assert actual[f"{RUNS['waits']}-1"] is Why.LEFT


@given(
    rows=st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(["intent", "audited", "approved", "rejected", "failed", "done"]),
        ),
        min_size=1,
        max_size=6,
    ),
    keep=st.integers(0, 40),
    days=st.integers(0, 400),
)
def test_what_may_be_published_is_never_over(rows, keep, days) -> None:
    history = History(
        tuple(
            Row("t-00000000-1", "i", 1, attempt, Step(step), "s", "t", WROTE, {"staging": "x"})
            for attempt, step in rows
        )
    )
    now = WROTE + timedelta(days=days)
    waits = waiting(history)
    for attempt in {attempt for attempt, _ in rows}:
        own = [row for row in history.rows if row.attempt == attempt]
        why = staging._why(history, own[-1], held=False)
        item = staging.Staged("n", "r", why, WROTE, 0)
        over = item.is_over(now, timedelta(days=keep))
        if waits is not None and waits.attempt == attempt:
            assert not over
        else:
            assert over == (days >= keep)


def test_the_command_tells_first_and_clears_when_it_is_told_to(lake: Lake, capsys) -> None:
    over = sorted(f"{RUNS[name]}-1" for name in ("rejected", "failed", "begun"))

    def run(*words: str) -> dict:
        assert main(["staging", "--lake", lake.root, "--json", *words]) == 0
        return json.loads(capsys.readouterr().out)

    reported = run()
    assert (reported["over"], reported["cleared"], reported["keep"]) == (3, [], "30 days")
    assert [row["name"] for row in reported["staged"] if row["over"]] == over
    assert run("--keep", "9999 days")["over"] == 0
    assert run("--clean", "--keep", "9999 days")["cleared"] == []
    assert len(children(lake.staging(""))) == 7
    assert run("--clean")["cleared"] == over
    assert run("--clean")["cleared"] == []
    assert len(children(lake.staging(""))) == 4
    assert main(["staging", "--lake", lake.root]) == 0
    assert "0 of 4, 0 bytes, would be deleted by --clean" in capsys.readouterr().out


@pytest.mark.parametrize("keep", ["soon", "3 months", "-1 days", ""])
def test_a_length_that_is_none(keep: str, lake: Lake, capsys) -> None:
    assert main(["staging", "--lake", lake.root, "--keep", keep]) == 2
    assert capsys.readouterr().err.startswith("CAP-USAGE: --keep: ")
