"""The path and the declaration of a target, and when a catalog must be asked for it."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.core.config import ProjectConfig, Target
from capstan.replay.planning.target_places import target_path
from capstan.storage.delta import delta
from capstan.storage.lake import Lake
from capstan.storage.ledger import moved_tables
from capstan.storage.ledger.tables import read_rows
from tests.support.jvmless_lake import starts_spark


def make_table(path: str) -> None:
    deltalake.write_deltalake(path, pa.table({"n": [1]}))


def found(lake: Lake, name: str, path: str) -> None:
    """Record a table as a catalog tells its path and id."""
    moved_tables._record_found(lake, name, path, delta.identity_of(path))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.at(tmp_path / "lake")


def test_the_path_of_a_target_is_where_its_name_was_last_seen(lake: Lake, tmp_path: Path) -> None:
    target = Target(name="t", table="shop.orders")
    declarations = ProjectConfig(tmp_path, {}, {}, {"t": target}, {})
    assert target_path(lake, declarations, "t") == (lake.table("t"), target)
    assert starts_spark(lake, declarations, "t")
    place = str(tmp_path / "warehouse" / "orders")
    make_table(place)
    found(lake, "shop.orders", place)
    assert target_path(lake, declarations, "t") == (place, target)
    assert target_path(lake, declarations, place) == (place, target)
    assert not starts_spark(lake, declarations, "t")
    rows = len(read_rows(lake, "tables"))
    found(lake, "shop.orders", place)
    assert len(read_rows(lake, "tables")) == rows == 1


def test_a_name_need_not_be_declared(lake: Lake, tmp_path: Path) -> None:
    none = ProjectConfig(tmp_path, {}, {}, {}, {})
    made_at = f"{lake.root}/tables/shop.orders"
    path, target = target_path(lake, none, "spark_catalog.Shop.orders")
    assert (path, target.table if target else "") == (made_at, "spark_catalog.Shop.orders")
    assert starts_spark(lake, none, "shop.orders")
    by_name = Target(name="t", table="SHOP.`orders`", time="day")
    config = ProjectConfig(tmp_path, {}, {}, {"t": by_name}, {})
    assert target_path(lake, config, "shop.Orders") == (lake.table("t"), by_name)
    place = str(tmp_path / "warehouse" / "orders")
    make_table(place)
    found(lake, "shop.orders", place)
    assert target_path(lake, none, "shop.ORDERS")[0] == place
    assert not starts_spark(lake, none, "shop.orders")

    # A declaration of that table holds, whether it has the name, another one or the path.
    for given in (by_name, Target(name="t", path=place, time="day")):
        config = ProjectConfig(tmp_path, {}, {}, {"t": given}, {})
        path, actual = target_path(lake, config, "shop.orders")
        assert actual is not None
        assert (path, actual.name, actual.time) == (place, "t", "day")
        assert actual.table is not None
        assert target_path(lake, config, "shop.others")[1] != given
