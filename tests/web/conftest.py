"""One real Airflow for the tests of its DAGs: the launcher's, over the project's own DAG files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest

from capstan.launcher import processes
from capstan.tape.lake import Lake
from capstan.testing import contents
from capstan.testing.browser import browsing, find_browser
from capstan.testing.launched import Launched, launch
from capstan.testing.rest import Rest, until
from capstan.workloads.flights import feed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
CAPTURE, REPLAY, BACKFILL = (
    "capstan_capture__flights",
    "capstan_replay",
    "capstan_backfill__flights_by_day",
)
STREAM = "flights"
SINCE, UNTIL = "2013-01-01", "2013-01-07"
"""Six days, complete once the source is captured."""
DAYS = 9
"""How many days of flights lie in the source; the last is not complete once they are captured."""


@dataclass(frozen=True)
class World:
    """A real Airflow, and the lake that its DAGs work on."""

    launched: Launched
    lake: Lake

    @property
    def rest(self) -> Rest:
        return self.launched.rest

    def replay(self, **asked: object) -> dict[str, object]:
        """Replay by `capstan_replay`, and wait until it has succeeded; its certificate."""
        run = self.rest.run(REPLAY, {"stream": STREAM, **asked})
        certificate = self.rest.xcom(REPLAY, run, "replay")
        assert isinstance(certificate, dict)
        return certificate

    def rows(self, table: str) -> list[str]:
        return contents.rows(self.lake.table(table))

    def versions(self) -> dict[str, int]:
        """The version of every Delta table of the lake."""
        root = Path(self.lake.root)
        places = [log.parent for log in root.rglob("_delta_log")]
        return {
            str(place.relative_to(root)): deltalake.DeltaTable(place).version() for place in places
        }


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An Airflow over a lake with a source and nothing on tape."""
    folder = tmp_path_factory.mktemp("airflow").resolve()
    lake = Lake.at(folder / "lake")
    feed(folder / "lake" / "sources" / "flights", days=range(DAYS))
    launched = launch(
        folder,
        arguments=["--lake", lake.root],
        environment={
            "CAPSTAN_STREAMS": str(ROOT / "dags" / "streams.yaml"),
            "CAPSTAN_DRIVER_MEMORY": "1g",
        },
    )
    try:
        yield World(launched, lake)
        launched.stop()
        assert launched.home.left() == []
    finally:
        processes.end(launched.home.left)
        if launched.process.poll() is None:
            launched.kill()


@pytest.fixture(scope="session")
def captured(world: World) -> World:
    """The same, once its source has been captured: by the scheduler, as soon as it may."""
    world.rest.wait_for_dag(CAPTURE)
    world.rest.unpause(CAPTURE)
    run = until(lambda: next(iter(world.rest.runs(CAPTURE)), None), 60)
    assert run["run_type"] == "scheduled"
    world.rest.require(CAPTURE, str(run["dag_run_id"]))
    world.rest.wait_for_dag(REPLAY)
    return world


@pytest.fixture(scope="session")
def whole(captured: World) -> dict[str, object]:
    """The certificate of one replay by day over six days, into table `whole`."""
    return captured.replay(into="whole", transform="flights_by_day", since=SINCE, until=UNTIL)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        message = "there is no Chromium: run tests/install-browser, or set CAPSTAN_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    with browsing(program) as found:
        yield found


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures of the pages on the way go: what `CAPSTAN_SCREENSHOTS` names, or nowhere."""
    folder = Path(os.environ.get("CAPSTAN_SCREENSHOTS") or tmp_path / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
