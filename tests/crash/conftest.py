"""One session that finishes what killed drivers began, and what an undisturbed run comes to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from capstan.ledger.tables import SCHEMAS, make_ledger
from capstan.session import build_session
from capstan.tape.lake import Lake
from capstan.testing import children, contents, little
from capstan.testing.actions import act
from capstan.testing.kill import Step
from capstan.testing.settings import LASTING, MASTER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session in which what was killed is run again, to its end."""
    session = build_session("capstan-tests", master=MASTER, extra=LASTING)
    yield session
    session.stop()


@dataclass(frozen=True)
class World:
    """A lake, its source, and the session of this process."""

    spark: SparkSession
    lake: Lake
    source: Path

    def act(self, action: str, **more: object) -> dict[str, object]:
        return act(self.spark, action, self._arguments(**more))

    def replay(self, request: dict[str, object]) -> dict[str, object]:
        return self.act("replay", request=request)

    def step(self, action: str, point: str = "", **more: object) -> Step:
        """The same action, for another driver that is killed at `point`."""
        return Step(action, self._arguments(**more), point)

    def held(self, action: str, point: str, **more: object) -> Step:
        """The same action, for another driver that is held at `point`."""
        return Step(action, self._arguments(**more), point, f"{self.lake.root}.go")

    def _arguments(self, **more: object) -> dict[str, object]:
        return {"lake": self.lake.root, "source": str(self.source), **more}


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stream's files; outside of every lake, as checkpoints know them by their path."""
    folder = tmp_path_factory.mktemp("source")
    little.feed(folder)
    return folder


@pytest.fixture(scope="session")
def empty(
    spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], World]:
    """Makes lakes with nothing in them."""

    def make() -> World:
        return World(spark, Lake.at(tmp_path_factory.mktemp("world") / "lake"), source)

    return make


@pytest.fixture(scope="session")
def growing(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], World]:
    """Makes lakes with nothing in them, each with a source of its own that has no file yet."""

    def make() -> World:
        folder = tmp_path_factory.mktemp("world")
        (folder / "source").mkdir()
        return World(spark, Lake.at(folder / "lake"), folder / "source")

    return make


@pytest.fixture(scope="session")
def captured(empty: Callable[[], World]) -> Lake:
    """A lake with the whole stream on tape, captured undisturbed; not to be changed."""
    world = empty()
    assert world.act("capture")["batches"] == little.FILES
    contents.require_sound(world.spark, world.lake)
    # What the first run of a lake makes, so that not each of the tests makes it anew.
    for ledger in SCHEMAS:
        make_ledger(world.spark, world.lake, ledger)
    return world.lake


@pytest.fixture(scope="session")
def recorded(empty: Callable[[], World], captured: Lake) -> Callable[[], World]:
    """Makes lakes with the whole stream on tape."""

    def make() -> World:
        world = empty()
        shutil.copytree(captured.root, world.lake.root)
        return world

    return make


@pytest.fixture(scope="session")
def undisturbed(captured: Lake) -> dict[str, list[str]]:
    """What the tape holds when nothing was killed."""
    return contents.tape(captured)


@pytest.fixture(scope="session")
def whole(recorded: Callable[[], World]) -> dict[str, dict[str, object]]:
    """What each request of the little stream comes to, by its name, when nothing was killed.

    `before` is the target of `staged` with other rows in it, `over` the same after `staged`.
    """
    world, found = recorded(), {}
    for name, request in little.REQUESTS.items():
        world.replay(request)
        found[name] = contents.table(world.lake, str(request["into"]))
        assert found[name]["rows"]
    again = recorded()
    for name, request in (("before", little.BEFORE), ("over", little.STAGED)):
        again.replay(request)
        found[name] = contents.table(again.lake, "staged")
    assert found["before"]["rows"] != found["over"]["rows"]
    return found


@pytest.fixture(scope="session")
def kill(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Step]], None]:
    """Has a driver carry out steps, and waits until it was killed with all of them cut off."""

    def carry_out(script: list[Step]) -> None:
        folder = tmp_path_factory.mktemp("killed") / "driver"
        children.start(folder, script).require_killed()

    return carry_out
