"""A driver killed at every write point of a merge by sequence, and of a replay of two streams.

The second stream is the first one, recorded again with other workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyarrow import fs

from capstan.storage.delta import delta
from capstan.storage.lake import children, folder
from capstan.storage.ledger import claims, runs
from capstan.storage.ledger.tables import kept_changes_path
from tests.support import lake_contents
from tests.support.crash_cases import REPLAY_POINTS, ROLLBACK_POINTS, Asked, Work, cases
from tests.support.small_stream import AGAIN, REPLAYED_OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import World

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

POINTS = {
    "versions": (*REPLAY_POINTS, "replay.changes"),
    "joined": (*REPLAY_POINTS, "replay.metrics"),
}
WORLDS = {"versions": "recorded", "joined": "paired"}


def asked(name: str) -> list[Asked]:
    """The replays of a request and of the one before it, each to its end."""
    return [Asked("replay", {"request": request}) for request in REPLAYED_OVER[name]]


REPLAYING = [
    Work("replay", point, {"request": REPLAYED_OVER[name][1]}, name, WORLDS[name]).after(
        asked(name)[0]
    )
    for name, points in POINTS.items()
    for point in points
]
ROLLING_BACK = [
    Work("rollback", point, name=name, world=WORLDS[name]).after(*asked(name))
    for name in POINTS
    for point in ROLLBACK_POINTS
]


@pytest.fixture(scope="module")
def paired(recorded: Callable[[], World], empty: Callable[[], World]) -> Callable[[], World]:
    """Makes lakes with the whole stream on two tapes."""
    first = recorded()
    first.act("recapture", into=AGAIN, peers=2)

    def make() -> World:
        world = empty()
        fs.copy_files(
            "",
            "",
            source_filesystem=folder(first.lake.root),
            destination_filesystem=folder(world.lake.root),
        )
        return world

    return make


@pytest.fixture(scope="module")
def wanted(request: pytest.FixtureRequest) -> dict[str, list[dict[str, object]]]:
    """The targets after the first and after both replays, when nothing is killed."""
    actual: dict[str, list[dict[str, object]]] = {}
    for name, requests in REPLAYED_OVER.items():
        world = request.getfixturevalue(WORLDS[name])()
        actual[name] = []
        for item in requests:
            world.replay(item)
            actual[name].append(lake_contents.table(world.lake, name))
        first, both = actual[name]
        assert first["rows"] != both["rows"] != []
    return actual


def require_stands(world: World, name: str, run: str) -> None:
    """Check that a run is done, has cleaned up, and the same request changes nothing any more."""
    lake_contents.require_published_once(world.lake, run)
    assert children(f"{world.lake.root}/staging") == []
    version = delta.version_of(world.lake.table(name))
    again = world.replay(REPLAYED_OVER[name][1])
    assert (again["run"], again["unchanged"]) == (run, True)
    assert delta.version_of(world.lake.table(name)) == version


@pytest.mark.parametrize("work", cases(REPLAYING))
def test_a_killed_replay_ends_in_the_same_target(killed, wanted, work) -> None:
    name = work.name
    run = killed.replay(REPLAYED_OVER[name][1])["run"]
    assert lake_contents.table(killed.lake, name) == wanted[name][1]
    require_stands(killed, name, run)
    # Changes that an attempt kept and did not publish count for nothing.
    killed.act("rollback", run=run)
    assert lake_contents.table(killed.lake, name)["rows"] == wanted[name][0]["rows"]


@pytest.mark.parametrize("work", cases(ROLLING_BACK))
def test_a_killed_rollback_takes_back_once(killed, wanted, work) -> None:
    name = work.name
    first, run = runs.read_histories(killed.lake)
    version = killed.act("rollback", run=run)["version"]
    assert lake_contents.table(killed.lake, name) == wanted[name][0]
    assert delta.version_of(killed.lake.table(name)) == version
    assert killed.act("rollback", run=run)["version"] == version
    assert delta.version_of(killed.lake.table(name)) == version
    assert claims.active(killed.lake) == []
    if name == "versions":
        kept = delta.open_table(kept_changes_path(killed.lake, killed.lake.table(name)))
        names = kept.to_pyarrow_table(columns=["_capstan_run"])["_capstan_run"].to_pylist()
        assert set(names) == {f"{first}-1"}
    again = killed.replay(REPLAYED_OVER[name][1])["run"]
    assert again != run
    assert lake_contents.table(killed.lake, name)["rows"] == wanted[name][1]["rows"]
    require_stands(killed, name, again)
