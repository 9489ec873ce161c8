"""Names of runs: short, and never those of runs of another identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from capstan.errors import FencedError
from capstan.storage.lake import Lake
from capstan.storage.ledger.run_identity import RunId, have_same_identity
from capstan.storage.ledger.runs import name_run, read_history, require_unique_name
from tests.support.jvmless_lake import Books

if TYPE_CHECKING:
    from pathlib import Path

OWN = "0123456789abcdef0123456789abcdef"
ALIKE = "01234567" + "f" * 24
"""As `OWN` in the digits that names have."""
NEARLY = OWN[:-1] + "0"


@pytest.fixture
def books(tmp_path: Path) -> Books:
    lake = Lake.at(tmp_path / "lake")
    return Books(lake, "s", lake.table("t"))


def named(books: Books, generation: int = 1, identity: str = OWN) -> str:
    return name_run(books.lake, identity, generation, books.target).name


def test_a_name_has_few_digits(books: Books) -> None:
    assert named(books) == "t-01234567-1"
    books.stepped("t-89abcdef-1", "intent", {}, identity="89abcdef" + "0" * 24)
    books.stepped("other-01234567-1", "intent", {}, identity=ALIKE)
    assert named(books) == "t-01234567-1"


def test_a_name_that_another_identity_has_takes_more_digits(books: Books) -> None:
    books.stepped("t-01234567-3", "intent", {}, identity=ALIKE)
    assert named(books) == "t-0123456789ab-1"
    assert named(books, identity=ALIKE) == "t-01234567-1"
    assert not have_same_identity("t-01234567-3", named(books))
    books.stepped("t-0123456789ab-1", "intent", {}, identity=NEARLY)
    assert named(books) == "t-0123456789abcdef-1"


def test_the_whole_identity_is_a_name_at_last(books: Books) -> None:
    for digits in range(8, 32, 4):
        books.stepped(f"t-{OWN[:digits]}-1", "intent", {}, identity=NEARLY)
    assert named(books) == f"t-{OWN}-1"


def test_a_name_that_a_run_has_it_keeps(books: Books) -> None:
    books.stepped("t-0123456789ab-1", "intent", {}, identity=OWN)
    assert named(books, 2) == "t-0123456789ab-2"
    history = read_history(books.lake, "t-0123456789ab-1")
    assert history.run_id.name == "t-0123456789ab-1"
    # Of before there were longer ones.
    books.stepped("t-01234567-1", "intent", {}, identity=ALIKE)
    assert named(books, 5, ALIKE) == "t-01234567-5"


def test_a_run_keeps_its_identity_whatever_its_name() -> None:
    short = RunId(OWN, 1, "t")
    long = RunId.named("t-0123456789ab-1", OWN, 1, "/lake/tables/t")
    assert (long.name, long.digits) == ("t-0123456789ab-1", 12)
    assert (short.app, short.fence(1)) == (long.app, long.fence(1))
    assert RunId.named("odd", OWN, 1, "/lake/tables/t") == short


def test_another_that_has_begun_under_the_name_is_noticed(books: Books) -> None:
    run = name_run(books.lake, OWN, 1, books.target)
    require_unique_name(books.lake, run)
    books.stepped(run.name, "intent", {}, identity=OWN)
    require_unique_name(books.lake, run)
    books.stepped(run.name, "intent", {}, identity=ALIKE)
    with pytest.raises(FencedError, match=r"CAP-FENCED.* t-01234567-1: another replay"):
        require_unique_name(books.lake, run)
