"""What is read of ledgers: no certificates where steps are asked for, none that are settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import dataset

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, runs, tables
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.tables import read_rows
from tests.support.bulk_ledger import publish_all
from tests.support.jvmless_lake import Books

if TYPE_CHECKING:
    from pathlib import Path

RUNS = 1000


class Counted:
    """The rows of a ledger, which count the values of each column that they give."""

    def __init__(self, rows: dataset.Dataset, values: Counter[str]) -> None:
        self._rows, self._values = rows, values

    def to_table(self, **asked: object) -> pa.Table:
        actual = self._rows.to_table(**asked)
        for name in actual.column_names:
            self._values[name] += actual.num_rows
        return actual


@pytest.fixture
def books(tmp_path: Path) -> Books:
    lake = Lake.at(tmp_path / "lake")
    return Books(lake, "s", lake.table("t"), _now=datetime.now(UTC) - timedelta(minutes=5))


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    values: Counter[str] = Counter()
    plain = tables.rows_of_files
    monkeypatch.setattr(tables, "rows_of_files", lambda *args: Counted(plain(*args), values))
    return values


def hour(number: int) -> Region:
    return Region(Box((number,), (number + 1,)))


def laid(books: Books, **told: object) -> list[str]:
    item = {f"t-{n:08x}-1": ((0,), hour(n)) for n in range(RUNS)}
    publish_all(books, item, **told)  # type: ignore[arg-type]
    return list(item)


def test_only_the_columns_that_are_asked_for(books: Books, values: Mapping[str, int]) -> None:
    books.published("b", [0], hour(1))
    books.published("a", [0], hour(2))
    rows = read_rows(books.lake, "runs", ("run", "step"), run="b")
    assert rows == [{"run": "b", "step": "intent"}, {"run": "b", "step": "done"}]
    assert values == {"run": 2, "step": 2, "at": 2}
    both = read_rows(books.lake, "runs", ("run",), run=("a", "b", "c"), step="done")
    assert both == [{"run": "b"}, {"run": "a"}]


def test_a_tuple_may_have_what_is_not_there(books: Books) -> None:
    books.claimed("a", [0], hour(1))
    books.released("a")
    actual = read_rows(books.lake, "claims", ("kind",), target=(books.target, None))
    assert [row["kind"] for row in actual] == ["release", "claim"]
    assert read_rows(books.lake, "claims", target=("elsewhere",)) == []


def test_claims_are_judged_without_certificates(books: Books, values: Mapping[str, int]) -> None:
    laid(books)
    books.claimed("t-x-1", [0], hour(0))
    books.claimed("t-y-1", [0], hour(1))
    books.released("t-y-1")
    assert [item.run for item in claims.active(books.lake, books.target)] == ["t-x-1"]
    scope = Scope(books.target, (0,), hour(1))
    assert [item.run for item in claims.abandoned(books.lake, "t-z-1", 1, scope)] == ["t-y-1"]
    assert (values["step"], values["detail"], values["identity"]) == (2 * RUNS, 0, 0)


def test_no_region_is_parsed_of_a_claim_that_is_over(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid(books)
    parsed = []
    plain = claims.parse_region
    monkeypatch.setattr(claims, "parse_region", lambda text: parsed.append(text) or plain(text))
    books.claimed("t-x-1", [0], hour(0))
    assert len(claims.active(books.lake)) == len(parsed) == 1
    assert len(claims.scopes(books.lake, books.target)) == RUNS + 1


def test_a_lock_ends_with_the_attempt_that_took_it_over(books: Books) -> None:
    books.claimed("t-x-1", [0], hour(0))
    books.claimed("t-x-1", [0], hour(0), attempt=2)
    books.stepped("t-x-1", "failed", {}, attempt=2)
    assert claims.active(books.lake, books.target) == []


def test_an_attempt_that_was_taken_over_is_dead_even_when_its_successor_has_ended(
    books: Books,
) -> None:
    books.claimed("t-x-1", [0], hour(0))
    books.claimed("t-x-1", [0], hour(0), attempt=2)
    books.stepped("t-x-1", "failed", {}, attempt=2)
    books.published("t-y-1", [0], hour(0))
    books.claimed("t-z-1", [0], hour(0))
    scope = Scope(books.target, (0,), hour(0))
    dead = claims.abandoned(books.lake, "t-w-1", 1, scope)
    assert [(claim.run, claim.attempt) for claim in dead] == [("t-x-1", 1)]


def test_only_what_is_not_settled_is_parsed(books: Books, values: Mapping[str, int]) -> None:
    laid(books)
    books.failed("t-x-1", [0], hour(0))
    books.published("t-y-1", [0], hour(1))
    books.rolled_back("t-y-1", [0], hour(1))
    books.stepped("t-z-1", "intent", {})
    assert list(runs.read_unrecorded(books.lake, books.target)) == ["t-x-1", "t-z-1"]
    assert values["detail"] == 2
    assert runs.read_unrecorded(books.lake, "elsewhere") == {}


def test_of_what_is_followed_only_the_last_run_is_parsed(
    books: Books, values: Mapping[str, int]
) -> None:
    *_, last = laid(books, identity="i")
    actual = runs.read_last_published(books.lake, "i", books.target)
    assert actual is not None
    assert (actual.last.run, actual.last.generation, values["detail"]) == (last, RUNS, 2)
    books.stepped("t-more-1", "intent", {}, identity="i", generation=RUNS + 1)
    begun, stands = (
        runs.read_last(books.lake, "i", books.target),
        runs.read_last_published(books.lake, "i", books.target),
    )
    assert begun is not None
    assert begun.last.run == "t-more-1"
    assert stands == actual
    books.stepped(last, "rolled-back", {}, identity="i", generation=RUNS)
    before = runs.read_last_published(books.lake, "i", books.target)
    assert before is not None
    assert before.last.generation == RUNS - 1
    assert (
        runs.read_last(books.lake, "other", books.target)
        is runs.read_last_published(books.lake, "o", books.target)
        is None
    )
