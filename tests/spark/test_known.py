"""Rows that more than a thousand runs have put into a table, before another replaces some."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from capstan.core.times import Box
from capstan.core.times.region import Region
from capstan.errors import InvalidRequestError
from capstan.replay.planning.planner import make_plan
from capstan.replay.target.foreign_rows import require_own_rows
from capstan.replay.target.ownership import Ownership
from capstan.storage.lake import Lake
from tests.support.bulk_ledger import publish_all
from tests.support.jvmless_lake import Books
from tests.support.replay_harness import Play
from tests.support.sample_streams import NAME, rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAYS = {"since": "2024-05-02", "until": "2024-05-04"}
RUNS = 1440
"""Two minutes each, of two days; two records have the time of every thirtieth."""
Known = Callable[[Collection[int]], None]


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    play = Play.of(spark, tmp_path_factory.mktemp("known"), rows(range(240)))
    play("table", **DAYS)
    return play


@pytest.fixture
def known(play: Play, tmp_path: Path) -> Known:
    """Asks for unknown rows of two days, which some runs have filled as far as ledgers say."""
    plan = make_plan(play.lake, play.declarations, play.request("table", **DAYS))
    box = plan.region.simplified().box
    since, until = box.since[0] or 0, box.until[0] or 0
    step, lake = (until - since) // RUNS, Lake.at(tmp_path)
    workers = tuple(sorted(plan.inputs.workers))

    def filled(runs: Collection[int]) -> None:
        item = {
            f"table-{n:08x}-1": Region(Box((since + n * step,), (since + (n + 1) * step,)))
            for n in runs
        }
        stored = {run: (workers, region) for run, region in item.items()}
        publish_all(Books(lake, NAME, plan.target), stored)
        require_own_rows(play.spark, Ownership(replace(plan, lake=lake)))

    return filled


def test_all_of_it_is_known(known: Known) -> None:
    known(range(RUNS))


def test_what_one_run_has_left_out_is_not(known: Known) -> None:
    with pytest.raises(InvalidRequestError, match=r"CAP-ADOPT.* 2 rows"):
        known([n for n in range(RUNS) if n != 30])


def test_beside_gaps_without_rows_all_of_it_is_known(known: Known) -> None:
    known(range(0, RUNS, 2))


def test_beside_gaps_with_rows_it_is_not(known: Known) -> None:
    with pytest.raises(InvalidRequestError, match=r"CAP-ADOPT.* 94 rows"):
        known([0, *range(1, RUNS, 2)])


def test_rows_that_another_stream_has_replaced_since_are_its_own(
    play: Play, tmp_path: Path
) -> None:
    plan = make_plan(play.lake, play.declarations, play.request("table", **DAYS))
    lake, workers = Lake.at(tmp_path), tuple(sorted(plan.inputs.workers))
    publish_all(Books(lake, NAME, plan.target), {"table-00000001-1": (workers, plan.region)})
    require_own_rows(play.spark, Ownership(replace(plan, lake=lake)))
    # The version that a run has published counts up from 1: the first of these is elsewhere.
    far = Region(Box((0,), (1,)))
    theirs = {"far-00000001-1": (workers, far), "table-00000002-1": (workers[:1], plan.region)}
    publish_all(Books(lake, "other", plan.target), theirs)
    printed = r"CAP-ADOPT.* this output was not the last .*: table-00000002-1 of stream other"
    with pytest.raises(InvalidRequestError, match=printed) as caught:
        require_own_rows(play.spark, Ownership(replace(plan, lake=lake)))
    all_ = play.spark.read.format("delta").load(plan.target)
    assert caught.value.fields["rows"] == all_.where(f"_worker = {workers[0]}").count() > 0
