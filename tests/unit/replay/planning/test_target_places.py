"""The path and the declaration of a target, and when a catalog must be asked for it."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from capstan.core.config import ProjectConfig, Target
from capstan.core.config.replays import Replay
from capstan.errors import InvalidRequestError
from capstan.replay.planning.target_places import require_below_roots, target_path
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


def refusal(lake: Lake, declared: ProjectConfig, into: str) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        require_below_roots(lake, declared, into)
    return caught.value


def test_a_form_names_tables_of_the_lake_unless_other_roots_are_declared(
    lake: Lake, tmp_path: Path
) -> None:
    none = ProjectConfig(tmp_path / "streams.yaml", {}, {}, {}, {})
    for into in ("march", f"{lake.root}/tables/march", f"{lake.root}/mine", "shop.orders"):
        require_below_roots(lake, none, into)
    for into in ("/etc/x", f"{lake.root}s/x", f"{tmp_path}/x", "s3a://bucket/x"):
        error = refusal(lake, none, into)
        assert (error.code, error.fields["target"]) == ("CAP-ROOT", into)
        assert lake.root in error.message
        assert "targets.roots in streams.yaml" in error.hint

    roots = (f"{tmp_path}/tables", "s3a://bucket/tables")
    some = ProjectConfig(tmp_path / "streams.yaml", {}, {}, {}, {}, roots=roots)
    for into in (f"{tmp_path}/tables/a/b", "s3://bucket/tables/x", "shop.orders"):
        require_below_roots(lake, some, into)
    for into in ("march", f"{tmp_path}/tables", "s3a://bucket/tables2/x", "s3a://other/tables/x"):
        assert refusal(lake, some, into).code == "CAP-ROOT"


def test_a_form_names_what_the_file_declares(lake: Lake, tmp_path: Path) -> None:
    away = Target(name="away", path="/data/away")
    replay = Replay(name="r", stream="s", target="/data/replayed")
    declared = ProjectConfig(tmp_path, {}, {}, {"away": away}, {"r": replay})
    for into in ("away", "/data/away", "/data/replayed"):
        require_below_roots(lake, declared, into)
    assert refusal(lake, declared, "/data/replayed/more").code == "CAP-ROOT"


def test_a_link_does_not_lead_out_of_a_root(lake: Lake, tmp_path: Path) -> None:
    none = ProjectConfig(tmp_path / "streams.yaml", {}, {}, {}, {})
    for folder in (f"{lake.root}/tables", f"{lake.root}/streams/s", f"{tmp_path}/outside"):
        Path(folder).mkdir(parents=True)
    Path(f"{lake.root}/out").symlink_to(tmp_path / "outside")
    Path(f"{lake.root}/tables/out").symlink_to(tmp_path / "outside")
    Path(f"{lake.root}/within").symlink_to(f"{lake.root}/streams")
    Path(f"{lake.root}/tables/other").symlink_to(f"{lake.root}/tables/march")
    for into in (f"{lake.root}/out/t", "out", f"{lake.root}/within/s", "other"):
        assert refusal(lake, none, into).code == "CAP-ROOT"
    # The lake itself may be behind a link; its tables are named by that way alone.
    linked = tmp_path / "linked"
    linked.symlink_to(lake.root)
    require_below_roots(Lake.at(linked), none, "march")
    require_below_roots(Lake.at(linked), none, f"{linked}/tables/march")
    for into in (f"{linked}/within/s", f"{lake.root}/tables/march"):
        assert refusal(Lake.at(linked), none, into).code == "CAP-ROOT"
