"""Which failed and dead runs still need a person, and which are settled by what came later."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.reporting.activity import TaskProgress
from capstan.reporting.attention.unfinished import LISTED_FOR, find_unfinished
from capstan.reporting.run_heads import read_heads
from capstan.storage.lake import Lake
from tests.support.jvmless_lake import FIRST, Books

DAY = 86_400_000_000
NOW = datetime(2024, 1, 2, tzinfo=UTC)


def days(since, until):
    return Region(Box((FIRST + since * DAY,), (FIRST + until * DAY,)))


@pytest.fixture
def books(tmp_path):
    lake = Lake.at(tmp_path)
    return Books(lake, "little", lake.table("t"))


def begun(books, run, workers, region, **more):
    books.claimed(run, workers, region, **more)
    books.stepped(run, "intent", {"request": {}})


def found(books, now=NOW):
    actual = find_unfinished(read_heads(books.lake), now)
    return {kind: getattr(actual, kind).names for kind in ("waiting", "failed", "dead")}


NONE = {"waiting": [], "failed": [], "dead": []}


def test_runs_that_have_ended_badly_are_told_apart(books):
    books.failed("t-0000000a-1", [0], days(0, 1))
    begun(books, "t-0000000b-1", [0], days(1, 2))
    books.stepped("t-0000000b-1", "audited", {})
    begun(books, "t-0000000c-1", [0], days(2, 3))
    books.published("t-0000000d-1", [0], days(3, 4))
    begun(books, "t-0000000e-1", [0], days(4, 5))
    books.stepped("t-0000000e-1", "rejected", {})
    assert found(books) == {
        "waiting": ["t-0000000b-1"], "failed": ["t-0000000a-1"], "dead": ["t-0000000c-1"],
    }  # fmt: skip


@pytest.mark.parametrize("later", [[(0, 3)], [(0, 1), (1, 2)]], ids=["one run", "two runs"])
def test_a_later_publish_of_the_whole_range_settles_a_run(books, later):
    books.failed("t-0000000a-1", [0, 1], days(0, 2))
    for number, (since, until) in enumerate(later):
        assert found(books)["failed"] == ["t-0000000a-1"]
        books.published(f"t-0000000{number + 1}-1", [0, 1, 2], days(since, until))
    assert found(books) == NONE


@pytest.mark.parametrize(
    ("workers", "since", "until"), [([0], 0, 2), ([0, 1], 0, 1), ([0, 1], 1, 3)], ids=str
)
def test_a_publish_of_a_part_settles_nothing(books, workers, since, until):
    books.failed("t-0000000a-1", [0, 1], days(0, 2))
    books.published("t-0000000b-1", workers, days(since, until))
    assert found(books)["failed"] == ["t-0000000a-1"]


def test_a_publish_settles_nothing_that_failed_afterwards_or_elsewhere(books):
    books.published("t-0000000a-1", [0], days(0, 2))
    books.failed("t-0000000b-1", [0], days(0, 2))
    assert found(books)["failed"] == ["t-0000000b-1"]
    for stream, target in (("other", books.target), ("little", books.lake.table("u"))):
        more = Books(books.lake, stream, target, _now=books._now, _claims=books._claims)
        more.published(
            f"t-{stream[0]}0000000-1".replace("o", "c").replace("l", "d"), [0], days(0, 2)
        )
        books._now, books._claims = more._now, more._claims
    assert found(books)["failed"] == ["t-0000000b-1"]


def test_a_publish_that_was_rolled_back_settles_nothing(books):
    books.failed("t-0000000a-1", [0], days(0, 2))
    books.published("t-0000000b-1", [0], days(0, 2))
    books.rolled_back("t-0000000b-1", [0], days(0, 2))
    assert found(books)["failed"] == ["t-0000000a-1"]


def test_of_failures_over_one_range_the_newest_is_listed(books):
    for name in "abc":
        books.failed(f"t-0000000{name}-1", [0], days(0, 2))
    assert found(books)["failed"] == ["t-0000000c-1"]


def test_a_run_under_way_needs_nobody(books):
    books._now = datetime.now(UTC)
    begun(books, "t-0000000a-1", [0], days(0, 1))
    books.failed("t-0000000b-1", [0], days(1, 2))
    books.claimed("t-0000000b-1", [0], days(1, 2), attempt=2)
    now = datetime.now(UTC)
    assert found(books, now) == NONE
    books.released("t-0000000a-1")
    books.released("t-0000000b-1", 2)
    assert found(books, now) == {**NONE, "dead": ["t-0000000a-1"], "failed": ["t-0000000b-1"]}


def test_a_run_whose_task_has_ended_is_dead_before_its_claim_is(books):
    books._now = datetime.now(UTC)
    begun(books, "t-0000000a-1", [0], days(0, 1))
    begun(books, "t-0000000b-1", [0], days(1, 2))

    def informed(views):
        tasks = {"t-0000000a-1": TaskProgress.OVER, "t-0000000b-1": TaskProgress.RUNNING}
        return [replace(view, task=tasks[view.run]) for view in views]

    actual = find_unfinished(read_heads(books.lake), datetime.now(UTC), informed)
    assert actual.dead.names == ["t-0000000a-1"]


def test_a_run_that_is_tried_again_has_not_failed(books):
    books._now = datetime.now(UTC)
    tasks = {
        "t-0000000a-1": TaskProgress.QUEUED, "t-0000000b-1": TaskProgress.RUNNING,
        "t-0000000c-1": TaskProgress.OVER, "t-0000000d-1": None,
    }  # fmt: skip
    for day, run in enumerate(tasks):
        books.failed(run, [0], days(day, day + 1))

    def informed(views):
        return [replace(view, task=tasks[view.run]) for view in views]

    def failed(now):
        return find_unfinished(read_heads(books.lake), now, informed).failed.names

    assert failed(books._now) == ["t-0000000d-1", "t-0000000c-1"]
    # Airflow waits no longer for a retry; what is queued then is for another reason.
    assert len(failed(books._now + timedelta(days=1, seconds=5))) == 4


def test_of_very_many_the_oldest_are_counted_and_not_looked_at(books, monkeypatch):
    monkeypatch.setattr("capstan.reporting.attention.unfinished.LOOKED_AT", 2)
    for day, name in enumerate("abc"):
        books.failed(f"t-0000000{name}-1", [0], days(day, day + 1))
    begun(books, "t-0000000d-1", [0], days(3, 4))
    actual = find_unfinished(read_heads(books.lake), NOW)
    assert (actual.dead.names, actual.failed.names) == (["t-0000000d-1"], ["t-0000000c-1"])
    assert actual.older.names == ["t-0000000b-1", "t-0000000a-1"]
    # What has come later settles those that are looked at, and brings none of the others back.
    books.published("t-0000000e-1", [0], days(0, 4))
    actual = find_unfinished(read_heads(books.lake), NOW)
    assert (actual.dead.names, actual.failed.names, len(actual.older)) == ([], [], 2)


def test_a_run_that_is_at_work_is_not_among_the_oldest(books, monkeypatch):
    monkeypatch.setattr("capstan.reporting.attention.unfinished.LOOKED_AT", 1)
    begun(books, "t-0000000a-1", [0], days(0, 1), lives=timedelta(days=36_500))
    for day, name in enumerate("bc", 1):
        books.failed(f"t-0000000{name}-1", [0], days(day, day + 1))
    actual = find_unfinished(read_heads(books.lake), NOW)
    assert actual.failed.names == ["t-0000000c-1"]
    assert actual.older.names == ["t-0000000b-1"]


def test_an_approved_run_whose_claim_has_expired_is_dead(books):
    begun(books, "t-0000000a-1", [0], days(0, 1))
    books.stepped("t-0000000a-1", "audited", {})
    books.stepped("t-0000000a-1", "approved", {})
    assert found(books) == {**NONE, "dead": ["t-0000000a-1"]}


def test_failed_runs_are_listed_for_a_month_and_waiting_ones_as_long_as_they_wait(books):
    books.failed("t-0000000a-1", [0], days(0, 1))
    begun(books, "t-0000000b-1", [0], days(1, 2))
    books.stepped("t-0000000b-1", "audited", {})
    later = books._now + LISTED_FOR
    assert found(books, later - timedelta(seconds=5))["failed"] == ["t-0000000a-1"]
    assert found(books, later + timedelta(seconds=5)) == {**NONE, "waiting": ["t-0000000b-1"]}


def test_an_orphan_s_failure_after_the_publish_is_none(books):
    books.published("t-0000000a-1", [0], days(0, 1))
    books.stepped("t-0000000a-1", "failed", {"error": "CAP-FENCED"})
    assert found(books) == NONE
