"""Merges over rows that are not of their own output: refused and counted, unless adopted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pytest

from capstan.core.config import Mode, Transform
from capstan.errors import InvalidRequestError
from capstan.replay.planning.planner import make_plan
from capstan.replay.publish.diff import difference
from tests.support.replay_harness import Play
from tests.support.sample_streams import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY1 = {"until": "2024-05-02"}
DAY2 = {"since": "2024-05-02", "until": "2024-05-03"}
BY_ID = {"mode": Mode.MERGE, "keys": ("id",)}
SAME = Transform(name="same", sql="SELECT * FROM records", time="_time", worker="_worker")
# Of each place its last row: the table keeps no time.
LATEST = Transform(name="latest", sql="SELECT place, max(id) AS id FROM records GROUP BY place")


@pytest.fixture(scope="module")
def play(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Play:
    content = rows(range(160))
    return Play.of(spark, tmp_path_factory.mktemp("merges"), content, [SAME, LATEST])


def test_an_adopted_row_is_merged_over_once(play: Play) -> None:
    play("both", **DAY1, **BY_ID)
    before = play.rows("both").sort("id")
    requested = play.request("both", transform="same", until="2024-05-03", **BY_ID)

    with pytest.raises(
        InvalidRequestError, match=r"CAP-ADOPT: target both has 48 rows with keys of"
    ) as no:
        play("both", transform="same", until="2024-05-03", **BY_ID)
    assert "of stream little" in str(no.value)
    assert play.rows("both").sort("id").equals(before)
    plan = make_plan(play.lake, play.declarations, requested)
    assert difference(play.spark, plan).foreign == 48

    play("both", transform="same", until="2024-05-03", adopt=True, **BY_ID)
    assert play.column("both") == list(range(96))
    # From now on they are its own.
    play("both", transform="same", until="2024-05-04", **BY_ID)


@pytest.mark.nightly
def test_rows_of_other_keys_are_nobodys_concern(play: Play) -> None:
    play("apart", **DAY1, **BY_ID)
    play("apart", transform="same", **DAY2, **BY_ID)
    play("apart", since="2024-05-03", until="2024-05-04", **BY_ID)
    assert play.column("apart") == list(range(144))


@pytest.mark.nightly
def test_an_existing_table_without_times_is_adopted(play: Play) -> None:
    path = play.lake.table("latest")
    there = pa.table({"place": ["a", "x"], "id": pa.array([-1, -2], pa.int64())})
    deltalake.write_deltalake(path, there)
    requested = {"transform": "latest", "mode": Mode.MERGE, "keys": ("place",)}

    with pytest.raises(InvalidRequestError, match="CAP-ADOPT: target latest has 2 rows"):
        play("latest", **DAY1, **requested)
    assert play.column("latest") == [-2, -1]
    play("latest", **DAY1, adopt=True, **requested)
    play("latest", **DAY2, **requested)
    assert play.column("latest") == [-2, 93, 94, 95]
