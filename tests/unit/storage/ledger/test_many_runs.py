"""What is asked of the ledgers before each run opens few of their files, however many runs were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import RangeLockedError
from capstan.storage.lake import Lake
from capstan.storage.ledger import claims, coverage, runs, tables
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.run_identity import RunId
from tests.support.bulk_tapes import counting, lay_compacted_runs, lay_runs
from tests.support.jvmless_lake import EVENT, Books

EVERYTHING = Region(Box.everything(EVENT))


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_locking_opens_a_constant_number_of_files(tmp_path: Path, count: int) -> None:
    lake = Lake.at(tmp_path)
    target = lake.table("copy")
    lay_runs(Books(lake, "little", target, _now=datetime.now(UTC)), count)
    scope = Scope(target, (0,), EVERYTHING)
    with counting() as opened:
        mine = runs.name_run(lake, "ab" * 16, 1, target)
        assert claims.claim(lake, mine, "little", scope) == 1
    assert opened["runs"] <= 1
    assert opened["claims"] <= 3
    with counting() as opened:
        assert [item.run for item in claims.active(lake, target)] == [mine.name]
        claims.ensure_held(lake, mine.name, 1)
    assert opened["runs"] <= 1
    assert opened["claims"] <= 3
    with pytest.raises(RangeLockedError, match=mine.name):
        claims.claim(lake, RunId("cd" * 16, 1, "copy"), "little", scope)
    assert runs.name_run(lake, "00000007".ljust(32, "0"), 1, target).name == "copy-00000007-1"
    assert runs.name_run(lake, "00000007".ljust(32, "1"), 1, target).name != "copy-00000007-1"


@contextmanager
def reading() -> Iterator[Counter[str]]:
    """Count the bytes that are read of each ledger, and the rows of which objects are made."""
    rows: list[int] = []
    found = tables._found

    def counted(*args: object, **equal: object) -> pa.Table:
        return CountedRows(found(*args, **equal), rows)  # type: ignore[arg-type]

    with counting() as opened, patch.object(tables, "_found", counted):
        yield opened
    opened["rows"] = sum(rows)


class CountedRows:
    """A table that notes how many rows objects are made of."""

    def __init__(self, table: pa.Table, rows: list[int]) -> None:
        self._table, self._rows = table, rows

    def to_pylist(self) -> list[dict[str, object]]:
        self._rows.append(self._table.num_rows)
        return self._table.to_pylist()  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def __getitem__(self, name: str) -> object:
        return self._table[name]


def questions(books: Books) -> None:
    """What a run asks of the ledgers, with those of its own target."""
    lake, target = books.lake, books.target
    mine = runs.name_run(lake, "ab" * 16, 1, target)
    assert runs.read_last(lake, "ab" * 16, target) is None
    assert runs.read_unrecorded(lake, target) == {}
    assert len(coverage.current_by_ledger(lake, target)) == 50
    scope = Scope(target, (0,), EVERYTHING)
    attempt = claims.claim(lake, mine, "little", scope)
    assert claims.abandoned(lake, mine.name, attempt, scope) == []
    claims.ensure_held(lake, mine.name, attempt)
    step = {"stream": "little", "target": target, "detail": {}}
    runs.write_step(lake, mine, attempt, runs.Step.INTENT, **step)  # type: ignore[arg-type]
    assert len(coverage.current_by_ledger(lake, target)) == 50


@pytest.mark.parametrize("count", [50_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_a_run_reads_no_more_of_ledgers_with_many_runs(tmp_path: Path, count: int) -> None:
    actual = {}
    for made in (5_000, count):
        lake = Lake.at(tmp_path / str(made))
        books = Books(lake, "little", lake.table("copy"))
        lay_compacted_runs(books, made, made // 50)
        with reading() as actual[made]:
            questions(books)
    few, many = actual[5_000], actual[count]
    assert few["runs bytes"] > 0
    # Equal but for where the parts of a file begin.
    assert {name: many[name] <= 1.05 * few[name] for name in few} == dict.fromkeys(few, True)
