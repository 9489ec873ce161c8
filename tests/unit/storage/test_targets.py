"""Where a target lies: nothing of the lake's own is one, and a table has one path."""

from __future__ import annotations

from pathlib import Path

import pytest

from capstan.core.config import load_config
from capstan.errors import InvalidRequestError
from capstan.replay.planning.target_places import target_path
from capstan.storage.lake import Lake

DECLARED = """
streams: {}
targets:
  checked: {checks: [{not_null: [id]}]}
  elsewhere: {path: /data/march, time: day}
"""


@pytest.fixture
def streams(tmp_path: Path) -> Path:
    file = tmp_path / "streams.yaml"
    file.write_text(DECLARED, encoding="utf-8")
    return file


@pytest.mark.parametrize("root", ["/data/lake", "s3a://bucket/lake"])
def test_targets_are_tables_of_the_lake_or_lie_outside(root: str) -> None:
    lake, beside = Lake.at(root), root.removesuffix("/lake")
    assert lake.target("march") == f"{root}/tables/march" == lake.target(f"{root}/tables/march")
    for path in (f"{beside}/lakes", f"{beside}/other/lake", "/elsewhere", f"{root}/march"):
        assert lake.target(path) == path


@pytest.mark.parametrize("root", ["/data/lake", "s3a://bucket/lake"])
@pytest.mark.parametrize(
    "inside",
    ["streams/flights/events", "streams/new", "ledger/claims", "staging/x", "state/p", "aside/p",
     "kept/march",
     "ledger", "tables", "tables/march/part"],
)  # fmt: skip
def test_what_is_the_lakes_own_is_no_target(root: str, inside: str) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-NAME: .* it is part of the lake"):
        Lake.at(root).target(f"{root}/{inside}")


@pytest.mark.parametrize("root", ["/data/lake", "s3a://bucket/lake"])
def test_kept_changes_have_a_place_of_their_own_for_each_target(root: str) -> None:
    lake = Lake.at(root)
    assert lake.kept_changes(lake.target("march")) == f"{root}/kept/march"
    outside = [f"{root}/march", "/elsewhere/tables/march", "/elsewhere"]
    places = [lake.kept_changes(lake.target(path)) for path in outside]
    assert len({*places, f"{root}/kept/march"}) == 4
    assert all(place.startswith(f"{root}/kept/at-") for place in places)


@pytest.mark.parametrize("path", ["/data/my/lake", "/data/my", "/data"])
def test_what_the_lake_lies_in_is_no_target(path: str) -> None:
    with pytest.raises(InvalidRequestError, match="CAP-NAME: .* it contains the lake"):
        Lake.at("/data/my/lake").target(path)


def test_a_declared_target_is_the_same_by_its_path(streams: Path) -> None:
    lake = Lake.at("/data/lake")
    declared = load_config(streams, lake=lake.root)
    for name, path in {"checked": "/data/lake/tables/checked", "elsewhere": "/data/march"}.items():
        assert target_path(lake, declared, name) == (path, declared.targets[name])
        assert target_path(lake, declared, path) == (path, declared.targets[name])
    assert target_path(lake, declared, "/data/lake/tables/other")[1] is None
    assert target_path(lake, declared, "/data/lake/tables/elsewhere")[1] is None
    with pytest.raises(InvalidRequestError, match="CAP-NAME"):
        target_path(lake, declared, "/data/lake/ledger/claims")
