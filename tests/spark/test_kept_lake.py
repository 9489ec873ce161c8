"""Lakes of earlier versions are listed, verified, replayed again and continued.

Results must equal those of the version that made the lake; see `tests/formats/README.md`.
"""

from __future__ import annotations

import fcntl
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import kept_lake, kept_lake_3, lake_figures

if TYPE_CHECKING:
    from collections.abc import Callable

    from _pytest.mark import ParameterSet
    from pyspark.sql import SparkSession


Figures = dict[str, dict[str, lake_figures.Json]]

FORMATS = Path(__file__).parents[1] / "formats"
FIGURES = {
    kept: lake_figures.read_figures(FORMATS / kept / "figures.json.gz") for kept in ("2", "3")
}
COMMANDS = {
    "3 briefly": kept_lake_3.carry_on_briefly,
    "2": kept_lake.carry_on,
    "3": kept_lake_3.carry_on,
}
NAMES = {"3 briefly": {"commands": kept_lake_3.BRIEFLY, "tables": ()}, **FIGURES}


# After a run at another cut has replaced a part of `copies` by the same rows, format 2 published
# them once more. Today an audit finds them whole, and nothing changes (`test_standing.py`); the
# lake "3" has the same commands and ledgers without that. So versions and claims are other numbers.
OVERLAID = {
    *("replay copy", "replay lay over", "plan", "replay over", "lake/tables/copies"),
    *(f"lake/ledger/{name}" for name in ("changes", "claims", "coverage", "runs")),
}


def _cases(kind: str) -> list[ParameterSet]:
    """Each name of figures of each case; but for a few commands, they are further cases."""
    return [
        pytest.param(case, name, id=f"{case}-{name}", marks=_marks(case, name))
        for case, names in NAMES.items()
        for name in names[kind]
    ]


def _marks(case: str, name: str) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.nightly] if case in FIGURES else []
    if case == "2" and name in OVERLAID:
        marks.append(pytest.mark.xfail(reason="today the rows are found whole", strict=True))
    return marks


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> Callable[[str], tuple[Figures, Figures]]:
    """Results of commands on a lake, and the final contents of all tables: as kept, and now."""

    @functools.cache
    def continue_lake(case: str) -> tuple[Figures, Figures]:
        kept = case.removesuffix(" briefly")
        # Another test run on this machine uses the same place.
        with Path(f"{kept_lake.ROOT}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept_lake.unpack(FORMATS / kept / "lake.tar.xz")
            commands = dict(COMMANDS[case]())
            now = {"commands": commands, "tables": lake_figures.tables(kept_lake.ROOT)}
            kept_lake.remove()
        return FIGURES[kept], now

    return continue_lake


@pytest.mark.parametrize(("case", "name"), _cases("commands"))
def test_a_command_gives_the_same_result(
    results: Callable[[str], tuple[Figures, Figures]], case: str, name: str
) -> None:
    kept, now = (lake_figures.comparable(actual["commands"][name]) for actual in results(case))
    assert lake_figures.as_far_as(kept, now) == kept


@pytest.mark.parametrize(("case", "name"), _cases("tables"))
def test_a_table_has_the_same_contents(
    results: Callable[[str], tuple[Figures, Figures]], case: str, name: str
) -> None:
    kept, now = (lake_figures.comparable(actual["tables"][name]) for actual in results(case))
    # Today's ledgers have further columns, which a commit adds, and note what audits compared.
    is_ledger = name.rpartition("/")[0].endswith("ledger")
    # Maintenance deletes old parts of a log, so the log that is left depends on the lake's age.
    assert lake_figures.same_log(kept, now, more=is_ledger)
    lost, more = lake_figures.unmatched(kept["rows"], now["rows"])
    if name.endswith("ledger/metrics"):
        # Nodes that Spark computes have no counters.
        counted = {(row["run"], row["node"]) for row in now["rows"]}
        lost = [row for row in lost if (row["run"], row["node"]) in counted]
    assert lost == []
    assert [row for row in more if not (is_ledger and row.get("state") == "compared")] == []
    assert lake_figures.unmatched(kept["columns"]["fields"], now["columns"]["fields"])[0] == []
    assert is_ledger or now["columns"] == kept["columns"]
    for part in ("properties", "partitions"):
        assert now[part] == kept[part]


@pytest.mark.nightly
@pytest.mark.parametrize("case", FIGURES)
def test_commands_and_tables_are_the_same(
    results: Callable[[str], tuple[Figures, Figures]], case: str
) -> None:
    kept, now = (
        {kind: list(lake_figures.comparable(names)) for kind, names in actual.items()}
        for actual in results(case)
    )
    assert now == kept
