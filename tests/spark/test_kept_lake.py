"""A lake of an earlier version is listed, verified, replayed again and continued.

Results must equal those of the version that made the lake; see `tests/formats/README.md`.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import kept_lake, lake_figures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

KEPT = Path(__file__).parents[1] / "formats" / "2"
FIGURES = lake_figures.read_figures(KEPT / "figures.json.gz")

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> Iterator[dict[str, dict[str, lake_figures.Json]]]:
    """Results of the commands, and the final contents of all tables."""
    # Another test run on this machine uses the same place.
    with Path(f"{kept_lake.ROOT}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept_lake.unpack(KEPT / "lake.tar.gz")
        commands = dict(kept_lake.carry_on())
        yield {"commands": commands, "tables": lake_figures.tables(kept_lake.ROOT)}
        kept_lake.remove()


@pytest.mark.parametrize("name", FIGURES["commands"])
def test_a_command_gives_the_same_result(
    results: dict[str, dict[str, lake_figures.Json]], name: str
) -> None:
    kept, given = (lake_figures.comparable(item["commands"][name]) for item in (FIGURES, results))
    assert lake_figures.as_far_as(kept, given) == kept


@pytest.mark.parametrize("name", FIGURES["tables"])
def test_a_table_has_the_same_contents(
    results: dict[str, dict[str, lake_figures.Json]], name: str
) -> None:
    kept, now = (lake_figures.comparable(actual["tables"][name]) for actual in (FIGURES, results))
    # Maintenance deletes old parts of a log, so the log that is left depends on the lake's age.
    assert lake_figures.same_log(kept, now)
    for part in ("columns", "properties", "partitions", "rows"):
        assert now[part] == kept[part]


def test_commands_and_tables_are_the_same(results: dict[str, dict[str, lake_figures.Json]]) -> None:
    now = {kind: lake_figures.comparable(actual) for kind, actual in results.items()}
    assert {kind: list(actual) for kind, actual in now.items()} == {
        kind: list(actual) for kind, actual in FIGURES.items()
    }
