"""Claims: which are alive, which are dead but may still be at work, and who is in whose way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import FencedError, RangeLockedError
from capstan.replay.execution.fencing import runs_published_since
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims
from capstan.storage.ledger.claims import LEASE, Scope
from capstan.storage.ledger.run_identity import RunId
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


def scopes_of(books: Books, *names: str) -> dict[str, Scope]:
    """Adjoining ranges of a worker, by run."""
    return {
        name: Scope(books.target, (0,), Region(Box((10 * n,), (10 * n + 10,))))
        for n, name in enumerate(names)
    }


def test_several_are_claimed_by_one_commit(books: Books) -> None:
    first = Scope(books.target, (0,), Region(Box((90,), (99,))))
    claims.claim_all(books.lake, "s", {A: first})
    before = delta.version_of(books.lake.ledger("claims"))
    assert before is not None
    scopes = scopes_of(books, B, "t-cccccccc-1", "t-dddddddd-1")
    assert claims.claim_all(books.lake, "s", scopes) == dict.fromkeys(scopes, 1)
    assert delta.version_of(books.lake.ledger("claims")) == before + 1
    assert [claim.ordinal for claim in claims.active(books.lake)] == [0, 1, 2, 3]
    later = RunId("ee" * 16, 1, "t")
    free = Scope(books.target, (0,), Region(Box((70,), (80,))))
    assert claims.claim(books.lake, later, "s", free) == 1
    assert claims.active(books.lake)[-1].ordinal == 4


def test_of_several_all_are_claimed_or_none(books: Books) -> None:
    first = Scope(books.target, (0,), Region(Box((15,), (16,))))
    claims.claim_all(books.lake, "s", {A: first})
    scopes = scopes_of(books, B, "t-cccccccc-1", "t-dddddddd-1")
    with pytest.raises(RangeLockedError, match=f"CAP-HELD.*{A}"):
        claims.claim_all(books.lake, "s", scopes)
    assert alive(books) == [(A, 1)]
    assert claims.last_attempts(books.lake, scopes) == dict.fromkeys(scopes, 1)


def test_a_claim_between_is_seen_by_both(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that claim at once, the later commit gets the later ordinals."""
    scopes = scopes_of(books, B, "t-cccccccc-1")
    append, others = claims.append_rows, [RunId("ee" * 16, 1, "t")]

    def late(*args: Any, **more: Any) -> bool:
        for other in others[:1]:
            others.clear()
            claims.claim(books.lake, other, "s", Scope(books.target, (1,), EARLY))
        return append(*args, **more)

    monkeypatch.setattr(claims, "append_rows", late)
    claims.claim_all(books.lake, "s", scopes)
    found = {claim.run: claim.ordinal for claim in claims.active(books.lake)}
    assert sorted(found.values()) == [0, 1, 2]
    assert [found[run] for run in scopes] == [1, 2]


def test_claims_that_are_watched_are_read_once(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes = scopes_of(books, A, B)
    held = claims.HeldClaims(books.lake, claims.claim_all(books.lake, "s", scopes))
    read, reads = claims.held_claims, []
    monkeypatch.setattr(claims, "held_claims", lambda *a: reads.append(a) or read(*a))
    for run in (A, B, A):
        held.ensure(run)
    assert len(reads) == 1
    books.released(B)
    held.ensure(A)
    assert len(reads) == 2
    with pytest.raises(FencedError, match=f"CAP-FENCED.*{B}"):
        held.ensure(B)


def test_a_watched_claim_is_renewed_in_time(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    held = claims.HeldClaims(books.lake, claims.claim_all(books.lake, "s", scopes_of(books, A, B)))
    held.ensure(A)
    before = {claim.run: claim for claim in claims.active(books.lake)}
    soon = datetime.now(UTC) + LEASE * 7 / 8
    monkeypatch.setattr(claims, "now", lambda: soon)
    held.ensure(A)
    after = {claim.run: claim for claim in claims.active(books.lake)}
    assert after[A].expires > before[A].expires
    assert (after[A].ordinal, after[B]) == (before[A].ordinal, before[B])


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
