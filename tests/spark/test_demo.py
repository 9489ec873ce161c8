"""The main job as a newcomer runs it: what it says is what the pages say, and it is done once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from capstan.storage.lake import Lake
from tests.support.docs import PAGES, blocks, page

pytestmark = pytest.mark.timeout(3600)

CAPSTAN = Path(sys.executable).with_name("capstan")


def program(folder: Path, *words: object) -> str:
    """What a program says that runs in a folder, as anybody would start it there."""
    # Tests of Airflow that ran before in this process have told it of a lake of their own.
    own = {name: value for name, value in os.environ.items() if not name.startswith("CAPSTAN_")}
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised() -> list[str]:
    """The certificate that the README shows, line by line, without the name of the run."""
    block = re.search(
        r"^    certificate of .*?\n\n", PAGES["README.md"], flags=re.MULTILINE | re.DOTALL
    )
    assert block is not None
    return [nameless(line[4:]) for line in block[0].strip("\n").splitlines()]


def nameless(line: str) -> str:
    return re.sub(r"-[0-9a-f]{8}-1$", "", line.rstrip())


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with the lake of the main job, and the lines that it ended with."""
    folder = tmp_path_factory.mktemp("demo")
    text = program(folder, CAPSTAN, "demo")
    return folder, [nameless(line) for line in text.splitlines()]


def test_it_ends_with_the_certificate_of_the_readme(said: tuple[Path, list[str]]) -> None:
    _, lines = said
    expected = promised()
    start = lines.index(expected[0])
    assert lines[start : start + len(expected)] == expected


def test_its_figures_are_those_of_the_quickstart(said: tuple[Path, list[str]]) -> None:
    folder, _ = said
    lake = Lake.at(folder / "lake")
    records = pl.read_delta(lake.stream("flights").records)["data"].struct
    late = pl.read_delta(lake.stream("flights").late)
    fed, on_tape = len(records.field("origin")) + len(late), len(records.field("origin"))
    cancelled = records.field("cancelled").sum()
    text = " ".join(page("quickstart").split())
    for figure in (
        f"takes the {fed:,} departures of 2013",
        f"{len(late)} departures were more than three hours late",
        f"not on tape. The other {on_tape:,} are on tape.",
        f"The {cancelled:,} cancelled flights are on tape too",
    ):
        assert figure in text
    assert f"the {fed:,} flights scheduled from New York in 2013" in " ".join(
        PAGES["README.md"].split()
    )
    assert late["reason"].unique().to_list() == ["late"]


def test_a_second_time_changes_nothing(said: tuple[Path, list[str]]) -> None:
    folder, _ = said

    def files() -> dict[str, int]:
        actual = sorted((folder / "lake").rglob("*"))
        return {str(path): path.stat().st_mtime_ns for path in actual if path.is_file()}

    before = files()
    again = json.loads(program(folder, CAPSTAN, "demo", "--json"))
    assert not again["changed"]
    assert len(again["steps"]) == 6
    assert [step["step"] for step in again["steps"] if step["changed"]] == []
    assert files() == before


@pytest.mark.nightly
def test_where_the_quickstart_queries_tables_there_is_something(
    said: tuple[Path, list[str]],
) -> None:
    folder, _ = said
    looking = blocks(page("quickstart"), "python")
    assert len(looking) == 4
    plain, tape, ledger, spark = (program(folder, sys.executable, "-c", item) for item in looking)

    march = pl.read_delta(folder / "lake/tables/march_departures")
    for column in ("origin", "carrier", "dest"):
        most = march[column].value_counts().sort("count").row(-1)
        assert told(plain, *most), most

    lake = Lake.at(folder / "lake")
    paths = lake.stream("flights")
    labels = dict(pl.read_delta(paths.workers).select("worker", "label").iter_rows())
    for worker, count in pl.read_delta(paths.records)["worker"].value_counts().iter_rows():
        cells = pl.read_delta(paths.events).filter(worker=worker, kind="messages")
        assert told(tape, labels[worker], len(cells), count)
    late = pl.read_delta(paths.late).select("reason", pl.col("data").struct.field("origin"))
    for reason, origin, count in late.group_by("reason", "origin").len().iter_rows():
        assert told(tape, reason, origin, count)
    assert all(told(tape, batch, "capture") for batch in range(3))

    for name, columns in {"runs": 4, "coverage": 6}.items():
        rows = pl.read_delta(lake.ledger(name))
        assert f"shape: ({len(rows)}, {columns})" in ledger
        assert len(rows) > 5

    days = pl.read_delta(folder / "lake/tables/flights_by_day")
    worst = days.sort("mean_delay_minutes", descending=True, nulls_last=True).row(0, named=True)
    assert told(spark, worst["origin"], f"{worst['day']:%Y-%m-%d}")


def told(text: str, *cells: object) -> bool:
    """Whether these stand beside each other in a row of a table that was printed."""
    between = r"[ │┆|]+"
    return re.search(rf"\b{between.join(map(str, cells))}\b", text) is not None
