"""Coverage of a table to tell: what the ledgers and the log say of it, in bounded batches."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.backfill.told_coverage import (
    CoverageBatch,
    Loss,
    TablePart,
    ToldCoverage,
    next_changes,
)
from capstan.core.config import Mode, ProjectConfig, Replay, Transform
from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.storage.lake import Lake
from capstan.storage.ledger.coverage import write_gone
from tests.support.jvmless_lake import FIRST, Books, go_on, lay_tape

HOUR = 3_600_000_000
REPLAYS = (
    Replay(name="hourly", stream="s", target="copy", schedule="@hourly"),
    Replay(name="whole", stream="s", target="whole", transform="mixed", mode=Mode.APPEND),
    Replay(name="odd", stream="s", target="copy", since=datetime(2024, 5, 1, 0, 0, 0, 5, UTC)),
)
CONFIG = ProjectConfig(
    Path("x.yaml"),
    {},
    {"mixed": Transform(name="mixed", sql="SELECT count(*) AS n FROM records")},
    {},
    {item.name: item for item in REPLAYS},
)


def hours(since: int, until: int) -> Region:
    return Region(Box((FIRST + since * HOUR,), (FIRST + until * HOUR,)))


def keys(*numbers: int) -> tuple[str, ...]:
    return tuple(f"2024-05-{1 + n // 24:02}T{n % 24:02}:00:00" for n in numbers)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a stream of one worker, six hours of which are complete."""
    lake = Lake.at(tmp_path)
    lay_tape(lake, "s", "a", [(FIRST,), (FIRST + 7 * HOUR,)], (FIRST + 6 * HOUR,))
    return lake


@pytest.fixture
def books(lake: Lake) -> Books:
    return Books(lake, "s", lake.table("copy"))


class Teller:
    """Tells what is to be told of the table, each batch as it comes back from an event."""

    def __init__(self, lake: Lake, told: ToldCoverage | None = None) -> None:
        self.lake = lake
        self.told = told or ToldCoverage()

    def next(self, of: str = "hourly", most: int = 500) -> CoverageBatch | None:
        return next_changes(self.lake, CONFIG, of, self.told, most)

    def tell(self, most: int = 500) -> list[tuple[tuple[str, ...], Loss | None]]:
        """All batches that are left."""
        batches = []
        while (batch := self.next(most=most)) is not None:
            # Whoever is killed has told nothing, and the next one tells the same.
            assert self.next(most=most) == batch
            batches.append((batch.keys, batch.loss))
            told = ToldCoverage.from_json(json.loads(json.dumps(batch.told.to_json())))
            assert told == batch.told
            self.told, left = told, batch.left
        assert not batches or left == 0
        return batches


@pytest.fixture
def teller(lake: Lake) -> Teller:
    return Teller(lake)


def test_a_publish_covers_whole_intervals_once(books: Books, teller: Teller) -> None:
    assert teller.tell() == []
    books.published("r1", [0], Region(Box((FIRST,), (FIRST + 5 * HOUR // 2,))))
    assert teller.tell() == [(keys(0, 1), None)]
    assert teller.tell() == []
    books.published("r2", [0], Region(Box((FIRST + 5 * HOUR // 2,), (FIRST + 4 * HOUR,))))
    assert teller.tell() == [(keys(2, 3), None)]
    # Adjoining hours are one part of the record, whoever wrote them.
    assert len(teller.told.parts) == len(teller.told.publishes) == 1


def test_what_was_written_before_it_was_complete_is_told_once_it_is(
    lake: Lake, books: Books, teller: Teller
) -> None:
    books.published("r1", [0], hours(0, 8))
    assert teller.tell() == [(keys(*range(6)), None)]
    go_on(lake, "s", [], (FIRST + 7 * HOUR,))
    assert teller.tell() == [(keys(6), None)]


def test_what_is_written_again_is_told_again(books: Books, teller: Teller) -> None:
    books.published("r1", [0], hours(0, 4))
    teller.tell()
    books.published("r2", [0], hours(1, 2))
    assert teller.tell() == [(keys(1), None)]
    # So it is when the rows before come back.
    books.rolled_back("r2", [0], hours(1, 2))
    assert teller.tell() == [(keys(1), None)]
    # What was gone between two looks, and is back, is told as back.
    books.rolled_back("r1", [0], hours(0, 4))
    books.published("r3", [0], hours(0, 3))
    lost = Loss("gap", (), ("r1",))
    assert teller.tell() == [(keys(3), lost), (keys(0, 1, 2), None)]
    assert teller.tell() == []


def test_a_rollback_is_told_with_the_run_and_the_same_hours_again_once_they_are_back(
    books: Books, teller: Teller
) -> None:
    books.published("r1", [0], hours(0, 2))
    books.published("r2", [0], hours(2, 4))
    teller.tell()
    books.rolled_back("r2", [0], hours(2, 4))
    assert teller.tell() == [(keys(2, 3), Loss("gap", (), ("r2",)))]
    assert teller.tell() == []
    books.published("r3", [0], hours(2, 4))
    assert teller.tell() == [(keys(2, 3), None)]


def test_a_change_by_others_is_told_with_their_commit(books: Books, teller: Teller) -> None:
    books.published("r1", [0], hours(0, 2))
    teller.tell()
    # Bounds of its file do not say which hours it has.
    deltalake.write_deltalake(books.target, pa.table({"n": [2]}), mode="append")
    [(gone, loss)] = teller.tell()
    assert gone == keys(0, 1)
    assert loss is not None
    assert (loss.state, len(loss.changes), loss.rolled_back) == ("changed", 1, ())
    assert loss.changes[0].startswith("version 2 (WRITE, ")


def test_nothing_that_was_told_of_a_table_stands_for_the_next_one_at_its_place(
    lake: Lake, books: Books, teller: Teller
) -> None:
    books.published("r1", [0], hours(0, 2))
    teller.tell()
    shutil.rmtree(books.target)
    assert Teller(lake, teller.told).tell() == [(keys(0, 1), Loss("gap", (), ()))]
    write_gone(lake, books.target, ["r1"])
    # Versions begin again.
    again = replace(books, _version=0, _now=datetime.now(UTC) + timedelta(minutes=1))
    again.published("r2", [0], hours(0, 1))
    before = teller.told
    assert teller.tell() == [(keys(1), Loss("gap", (), ())), (keys(0), None)]
    assert teller.told.publishes == before.publishes


def test_ten_thousand_intervals_are_told_once_each_in_bounded_batches() -> None:
    hours = [TablePart(n * HOUR, (n + 1) * HOUR) for n in range(10_000)]
    told, seen = ToldCoverage().standing("t", [1], [(0, 10_000 * HOUR)]), list[TablePart]()
    while changes := told.changes(hours):
        seen += changes[:500]
        told = told.after(changes[:500])
        assert len(str(told.to_json())) < 200
    assert seen == hours


def test_batches_are_bounded_and_alike_losses_first(books: Books, teller: Teller) -> None:
    books.published("r1", [0], hours(0, 2))
    books.published("r2", [0], hours(2, 3))
    assert [told for told, _ in teller.tell(most=2)] == [keys(0, 1), keys(2)]
    books.rolled_back("r1", [0], hours(0, 2))
    books.rolled_back("r2", [0], hours(2, 3))
    books.published("r3", [0], hours(3, 6))
    assert teller.tell(most=2) == [
        (keys(0, 1), Loss("gap", (), ("r1",))),
        (keys(2), Loss("gap", (), ("r2",))),
        (keys(3, 4), None),
        (keys(5), None),
    ]


def test_what_runs_of_their_own_had_written_is_lost_together(books: Books, teller: Teller) -> None:
    for n in range(6):
        books.published(f"r{n}", [0], hours(n, n + 1))
    teller.tell()
    for n in range(6):
        books.rolled_back(f"r{n}", [0], hours(n, n + 1))
    # At most three are named, of those that had written some of the batch.
    assert teller.tell(most=4) == [
        (keys(0, 1, 2, 3), Loss("gap", (), ("r1", "r2", "r3"))),
        (keys(4, 5), Loss("gap", (), ("r4", "r5"))),
    ]


@pytest.mark.parametrize(
    ("of", "problem"), [("whole", "its table has no time"), ("odd", "begin at whole seconds")]
)
def test_what_has_no_keys_is_refused(
    of: str, problem: str, lake: Lake, books: Books, teller: Teller
) -> None:
    go_on(lake, "s", [], (FIRST + 100 * HOUR,))
    books.published("r1", [0], hours(0, 100))
    with pytest.raises(InvalidRequestError, match=f"^CAP-PARTITIONS: .*replay {of} .*{problem}"):
        teller.next(of)


def test_anything_else_says_nothing_of_what_was_told() -> None:
    for value in (None, 5, {}, {"parts": []}, {**ToldCoverage().to_json(), "x": 1}):
        assert ToldCoverage.from_json(value) is None
