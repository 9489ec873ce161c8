"""Claims: which are alive, which are dead but may still be at work, and who is in whose way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import FencedError
from capstan.replay.execution.fencing import runs_published_since
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import LEASE, Scope
from tests.support.jvmless_lake import Books

if TYPE_CHECKING:
    from pathlib import Path


EARLY, LATE = Region(Box((0,), (10,))), Region(Box((10,), (20,)))
A, B, NEXT_A = "t-aaaaaaaa-1", "t-bbbbbbbb-1", "t-aaaaaaaa-2"


@pytest.fixture
def books(tmp_path: Path) -> Books:
    lake = Lake.at(tmp_path / "lake")
    return Books(lake, "s", lake.table("t"), _now=datetime.now(UTC) - timedelta(minutes=5))


def alive(books: Books) -> list[tuple[str, int]]:
    return [(item.run, item.attempt) for item in claims.active(books.lake)]


def left_open(books: Books, region: Region = EARLY, run: str = B) -> list[tuple[str, int]]:
    scope = Scope(books.target, (0,), region)
    return [(item.run, item.attempt) for item in claims.abandoned(books.lake, run, 9, scope)]


def test_a_claim_that_was_unlocked_may_still_be_at_work(books: Books) -> None:
    books.claimed(A, [0], EARLY)
    assert (alive(books), left_open(books)) == ([(A, 1)], [])
    books.released(A)
    assert (alive(books), left_open(books)) == ([], [(A, 1)])
    # Not in the way of other times, nor of other workers.
    assert left_open(books, LATE) == []
    other = Scope(books.target, (1,), EARLY)
    assert claims.abandoned(books.lake, B, 1, other) == []


@pytest.mark.parametrize("back", [timedelta(hours=1), timedelta(days=400)])
def test_a_clock_that_jumps_back_ends_no_claim(
    books: Books, monkeypatch: pytest.MonkeyPatch, back: timedelta
) -> None:
    books.claimed(A, [0], EARLY)
    monkeypatch.setattr(claims, "now", lambda: datetime.now(UTC) - back)
    assert (alive(books), left_open(books)) == ([(A, 1)], [])
    # Its holder goes on, and writes nothing new meanwhile.
    claims.ensure_held(books.lake, A, 1)


@pytest.mark.parametrize("step", ["done", "failed", "rolled-back"])
def test_an_attempt_that_has_ended_itself_is_over(books: Books, step: str) -> None:
    books.claimed(A, [0], EARLY)
    books.stepped(A, step, {})
    assert (alive(books), left_open(books)) == ([], [])


def test_one_that_was_rejected_may_still_be_published(books: Books) -> None:
    books.claimed(A, [0], EARLY)
    books.stepped(A, "rejected", {})
    assert (alive(books), left_open(books)) == ([], [(A, 1)])


def test_one_that_ran_out_or_was_taken_over_may_still_be_at_work(books: Books) -> None:
    books.claimed(A, [0], EARLY, lives=timedelta(seconds=1))
    books.claimed(B, [0], EARLY)
    books.claimed(B, [0], EARLY, attempt=2)
    assert alive(books) == [(B, 2)]
    assert left_open(books, run="t-cccccccc-1") == [(A, 1), (B, 1)]


def test_late_renewals_begin_a_new_lock(books: Books) -> None:
    books.claimed(A, [0], EARLY, lives=timedelta(seconds=30))
    books.claimed(B, [0], EARLY, lives=timedelta(seconds=1))
    books.claimed(A, [0], EARLY)
    books.claimed(B, [0], EARLY)
    actual = {item.run: item for item in claims.active(books.lake)}
    assert {run: item.ordinal for run, item in actual.items()} == {A: 0, B: 3}
    assert actual[A].expires - actual[A].at > LEASE


@pytest.mark.parametrize("end", ["release", "step", "next attempt"])
def test_whoever_lost_its_claim_is_fenced_before_it_commits(books: Books, end: str) -> None:
    books.claimed(A, [0], EARLY)
    books.stepped(A, "intent", {})
    claims.ensure_held(books.lake, A, 1)
    if end == "release":
        books.released(A)
    elif end == "step":
        books.stepped(A, "rejected", {})
    else:
        books.claimed(A, [0], EARLY, attempt=2)
    with pytest.raises(FencedError, match="CAP-FENCED.*attempt 1 lost its claim"):
        claims.ensure_held(books.lake, A, 1)


def test_runs_of_one_identity_conflict(books: Books) -> None:
    books.claimed(A, [0], EARLY)
    (first,) = claims.active(books.lake)
    later = Scope(books.target, (0,), LATE)
    assert first.conflicts_with(NEXT_A, later)
    assert not first.conflicts_with(B, later)
    books.released(A)
    assert left_open(books, LATE, NEXT_A) == [(A, 1)]


def lay_target(books: Books, *notes: dict[str, object]) -> None:
    """A target with a commit for each note."""
    for note in notes or ({},):
        deltalake.write_deltalake(
            books.target,
            pa.table({"n": [1]}),
            mode="append",
            commit_properties=deltalake.CommitProperties(
                custom_metadata={"userMetadata": delta.note_text(note, "token")}
            ),
        )


def test_later_published_runs_are_reported_until_rolled_back(books: Books) -> None:
    books.published(A, [0], EARLY)
    books.published(B, [0, 1], EARLY)
    books.published("t-cccccccc-1", [0], LATE)
    books.published(NEXT_A, [0], LATE)
    scope = Scope(books.target, (0,), EARLY)
    lay_target(books)
    assert runs_published_since(books.lake, scope, 1, A) == [B, NEXT_A]
    assert runs_published_since(books.lake, scope, 2, A) == [NEXT_A]
    books.rolled_back(B, [0, 1], EARLY)
    assert runs_published_since(books.lake, scope, 1, A) == [NEXT_A]


def test_what_is_in_the_target_counts_before_any_ledger_says_so(books: Books) -> None:
    books.published(A, [0], EARLY)
    books.claimed(B, [0, 1], EARLY)
    books.claimed("t-cccccccc-1", [0], LATE)
    published = [{"run": run, "attempt": 1, "publish": True} for run in (A, B, "t-cccccccc-1")]
    lay_target(books, {}, *published)
    scope = Scope(books.target, (0,), EARLY)
    assert runs_published_since(books.lake, scope, 1, A) == [B]
    lay_target(books, {"run": B, "attempt": 2, "rollback": True})
    assert runs_published_since(books.lake, scope, 1, A) == []
