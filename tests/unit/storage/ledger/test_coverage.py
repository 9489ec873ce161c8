"""The coverage of a table ends with it: another table in its place has none of its runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from capstan.core.times import Box, Kind, TimeType
from capstan.core.times.region import Region
from capstan.storage.delta import arrow_writer, delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import coverage
from capstan.storage.ledger.claims import Scope
from capstan.storage.ledger.coverage import Covered, write_covered
from capstan.storage.ledger.tables import PROPERTIES, SCHEMAS, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable

EVENT = TimeType.of(event=Kind.TIMESTAMP)
ALL = Region(Box((None,), (None,)))
SCHEMA = arrow_writer.struct(n="long")


def write(lake: Lake, path: str, run: str, table: str) -> None:
    covered = Covered(run, 1, "s", Scope(path, (0,), ALL), "", "", 0, 1, table=table)
    write_covered(lake, [covered], EVENT, coverage.PUBLISHED)


def standing(lake: Lake, path: str) -> list[str]:
    return [entry.run for entry in coverage.current(lake, path)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path / "lake")


def replace(path: str) -> None:
    """Make another table in the same log, as CREATE OR REPLACE TABLE does."""
    arrow_writer.create_table(f"{path}-other", SCHEMA)
    made = Path(f"{path}-other/_delta_log/{0:020}.json").read_text(encoding="utf-8")
    [metadata] = [line for line in made.splitlines() if "metaData" in line]
    Path(f"{path}/_delta_log/{1:020}.json").write_text(metadata, encoding="utf-8")


def delete(path: str) -> None:
    """Delete the table and make another one."""
    shutil.rmtree(path)
    arrow_writer.create_table(path, SCHEMA)


@pytest.mark.parametrize("make_anew", [delete, replace])
def test_a_replaced_table_has_no_coverage(
    lake: Lake, tmp_path: Path, make_anew: Callable[[str], None]
) -> None:
    path = str(tmp_path / "t")
    arrow_writer.create_table(path, SCHEMA)
    write(lake, path, "a-1", delta.identity_of(path))
    assert standing(lake, path) == ["a-1"]
    make_anew(path)
    assert standing(lake, path) == []
    assert [entry.run for entry in coverage.recorded_at(lake, path)] == ["a-1"]
    write(lake, path, "b-1", delta.identity_of(path))
    assert standing(lake, path) == ["b-1"]
    shutil.rmtree(path)
    assert (standing(lake, path), coverage.recorded_at(lake, path)) == ([], [])


def test_a_ledger_without_the_tables_gains_the_column(lake: Lake, tmp_path: Path) -> None:
    path, ledger = str(tmp_path / "t"), lake.ledger("coverage")
    older = type(SCHEMAS["coverage"])([f for f in SCHEMAS["coverage"] if f.name != "table"])
    arrow_writer.create_table(ledger, older, properties=PROPERTIES)
    arrow_writer.create_table(path, SCHEMA)
    region = json.dumps({"above": None, "below": None, "since": [None], "until": [None]})
    old = {"target": path, "run": "a-1", "generation": 1, "stream": "s", "worker": 0,
           "region": region, "transform": "", "code": "", "cut": 0, "target_version": 1,
           "state": "published"}  # fmt: skip
    arrow_writer.append(
        ledger, pa.Table.from_pylist([old], schema=arrow_writer.arrow_schema(older))
    )
    # Of an older row, the table is not known: it counts as before.
    assert standing(lake, path) == ["a-1"]
    write(lake, path, "b-1", delta.identity_of(path))
    assert set(standing(lake, path)) == {"a-1", "b-1"}
    delete(path)
    assert standing(lake, path) == ["a-1"]
    assert {row["run"]: row["table"] is None for row in read_rows(lake, "coverage")} == {
        "a-1": True,
        "b-1": False,
    }
